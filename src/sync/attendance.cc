#include "sync/attendance.h"

#include <utility>

namespace gluon_syncbn {
namespace {

std::string who_came(const Membership& members, const std::set<Device>& present, bool counts) {
  return "Came: " + members.present_text(present, counts) +
         ". Missing: " + members.missing_text(present, counts) + ". ";
}

class ForwardAttendance : public Attendance {
 public:
  ForwardAttendance(std::shared_ptr<Membership> members, std::uint64_t number,
                    std::function<std::string()> elsewhere)
      : members_(std::move(members)), number_(number), elsewhere_(std::move(elsewhere)) {}

  std::string describe(const std::set<Device>& present) const override {
    const Advice& advice = members_->advice();
    std::string text = who_came(*members_, present, true);
    if (const auto inferring = members_->inferring_text(present); !inferring.empty()) {
      text += "Called in inference mode" + advice.inference + ": " + inferring +
              "; all devices should train, or none. ";
    }
    return text + elsewhere_() + advice.forward_causes;
  }

  void timed_out() override { members_->timed_out(); }
  void failed_at_once() override { members_->failed_at_once(number_); }
  std::string timeout_advice() const override { return members_->advice().timeout; }

 private:
  const std::shared_ptr<Membership> members_;
  const std::uint64_t number_;
  const std::function<std::string()> elsewhere_;
};

class BackwardAttendance : public Attendance {
 public:
  explicit BackwardAttendance(std::shared_ptr<Membership> members) : members_(std::move(members)) {}

  std::string describe(const std::set<Device>& present) const override {
    return who_came(*members_, present, false) + members_->advice().backward_causes;
  }

  void timed_out() override {}
  void failed_at_once() override {}
  std::string timeout_advice() const override { return members_->advice().timeout; }

 private:
  const std::shared_ptr<Membership> members_;
};

}  // namespace

std::shared_ptr<Attendance> forward_attendance(std::shared_ptr<Membership> members,
                                               std::uint64_t number,
                                               std::function<std::string()> elsewhere) {
  return std::make_shared<ForwardAttendance>(std::move(members), number, std::move(elsewhere));
}

std::shared_ptr<Attendance> backward_attendance(std::shared_ptr<Membership> members) {
  return std::make_shared<BackwardAttendance>(std::move(members));
}

}  // namespace gluon_syncbn
