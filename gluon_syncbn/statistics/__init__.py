"""Running statistics: compute them over a whole data set, and compare them across devices."""
