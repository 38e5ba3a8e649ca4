// A page from a folder may not start a Worker, which the search needs. There the script runs in a
// frame of its own instead. scripts/docs.sh takes this file in the place of one from another site.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.scope = frame.contentWindow;
      this.scope.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = frame.contentDocument.createElement("script");
      script.src = url;
      this.ready = new Promise((resolve) => (script.onload = resolve));
      frame.contentDocument.body.append(script);
    }
    async postMessage(data) {
      await this.ready;
      this.scope.dispatchEvent(new MessageEvent("message", { data }));
    }
  };
}
