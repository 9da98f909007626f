#include "launcher/agents/etcd_election.h"

#include <utility>

namespace lockstep::inline internal {

using boost::system::error_code;
using std::chrono::milliseconds;

EtcdElection::EtcdElection(boost::asio::io_context& io, Settings settings, Handlers handlers)
    : settings_(std::move(settings)),
      handlers_(std::move(handlers)),
      client_(io, settings_.addresses),
      look_again_(io),
      renew_again_(io),
      save_again_(io),
      lease_ends_(io) {}

void EtcdElection::ask(const etcd::Request& request, const OnText& on_text,
                       const std::function<void()>& on_trouble) {
  ++pending_;
  client_.ask(request, [this, on_text, on_trouble](const EtcdClient::Answer& answer) {
    --pending_;
    trouble_ = answer.trouble;
    answer.text ? on_text(*answer.text) : on_trouble();
  });
}

void EtcdElection::search() {
  if (is_searching_ || leads()) return;
  is_searching_ = true;
  if (!is_looking_) look();
}

void EtcdElection::look() {
  is_looking_ = true;
  ask(
      etcd::read_leader(settings_.keys),
      [this](const std::string& text) {
        const auto found = etcd::campaign_in(text);
        if (!found) return look_later();
        found->leader ? take(*found) : stand();
      },
      [this] { look_later(); });
}

void EtcdElection::look_later() {
  constexpr milliseconds kAgain{250};
  look_again_.expires_after(kAgain);
  look_again_.async_wait([this](error_code stopped) {
    if (stopped) return;
    is_looking_ = false;
    if (is_searching_ && !leads()) look();
  });
}

void EtcdElection::take(const etcd::Campaign& campaign) {
  look_later();
  if (!campaign.leader || campaign.leader->created == known_leader_) return;
  known_leader_ = campaign.leader->created;
  handlers_.on_leader(campaign.leader->text);
}

void EtcdElection::stand() {
  const auto later = [this] { look_later(); };
  // Etcd counts from some time after that.
  const Clock::time_point granted = Clock::now();
  ask(
      etcd::grant_lease(settings_.lease),
      [this, later, granted](const std::string& text) {
        const auto own = etcd::lease_in(text);
        if (!own) return look_later();
        ask(
            etcd::grant_lease(settings_.state_lease),
            [this, own, granted](const std::string& other) {
              const auto states = etcd::lease_in(other);
              states ? run_with({*own, *states}, granted) : look_later();
            },
            later);
      },
      later);
}

void EtcdElection::run_with(const etcd::Leases& leases, Clock::time_point granted) {
  ask(
      etcd::campaign(settings_.keys, handlers_.make_record(), leases.leader),
      [this, leases, granted](const std::string& text) {
        const auto result = etcd::campaign_in(text);
        const bool is_won = result && result->is_won;
        const bool has_ended = Clock::now() >= granted + settings_.lease;
        if (is_won && !has_ended) return win(*result, leases, granted);
        const auto nothing = [] {};
        for (const std::string& lease : {leases.leader, leases.state}) {
          ask(
              etcd::end_lease(lease), [](const std::string&) {}, nothing);
        }
        result && !is_won ? take(*result) : look_later();
      },
      // It may have been won all the same: then the lease ends soon.
      [this] { look_later(); });
}

void EtcdElection::win(const etcd::Campaign& campaign, const etcd::Leases& leases,
                       Clock::time_point granted) {
  is_looking_ = false;
  is_searching_ = false;
  term_ = campaign.leader->created;
  known_leader_ = term_;
  leases_ = leases;
  written_ = campaign.state ? campaign.state->written : "0";
  lease_ends_.expires_at(granted + settings_.lease);
  renew_after(granted);
  handlers_.on_won(campaign.state ? std::optional(campaign.state->text) : std::nullopt);
}

void EtcdElection::renew_after(Clock::time_point begin) {
  renew_again_.expires_at(begin + milliseconds(settings_.lease) / 3);
  renew_again_.async_wait([this](error_code stopped) {
    if (!stopped && leads()) renew();
  });
  lease_ends_.async_wait([this](error_code stopped) {
    // One that was put off ends its wait, too.
    if (stopped || !leads() || lease_ends_.expiry() > Clock::now()) return;
    depose(trouble_.empty() ? "its lease has ended" : trouble_);
  });
}

void EtcdElection::renew() {
  const Clock::time_point asked = Clock::now();
  const std::string term = term_;
  ask(
      etcd::renew_lease(leases_.leader),
      [this, asked, term](const std::string& text) {
        if (term != term_) return;
        if (!etcd::lease_in(text)) return depose("its lease has ended");
        lease_ends_.expires_at(asked + settings_.lease);
        renew_after(asked);
      },
      [this, term] {
        if (term == term_) renew_after(Clock::now());
      });
  ask(
      etcd::renew_lease(leases_.state), [](const std::string&) {}, [] {});
}

void EtcdElection::depose(const std::string& reason) {
  forget_term();
  handlers_.on_deposed(reason);
}

void EtcdElection::save(const std::string& state, std::function<void()> on_saved) {
  unsaved_ = state;
  on_saved_ = std::move(on_saved);
  if (!is_saving_) save_next();
}

void EtcdElection::save_next() {
  is_saving_ = true;
  const std::string state = *std::exchange(unsaved_, std::nullopt);
  const std::string term = term_;
  ask(
      etcd::save(settings_.keys, {.created = term_, .written = written_}, state, leases_.state),
      [this, term, state](const std::string& text) {
        is_saving_ = false;
        if (term == term_) note_saved(state, etcd::saved_in(text));
        if (unsaved_) save_next();
      },
      [this, term, state] {
        if (term == term_ && !unsaved_) unsaved_ = state;
        save_again_later();
      });
}

// Which may have been done before, by a request whose answer did not come.
void EtcdElection::note_saved(const std::string& state, const std::optional<etcd::Saved>& saved) {
  if (!saved || (!saved->is_done && saved->created != term_)) return depose("another leads");
  written_ = saved->written;
  if (!saved->is_done && !unsaved_) unsaved_ = state;
  if (!unsaved_) on_saved_();
}

void EtcdElection::save_again_later() {
  constexpr milliseconds kAgain{250};
  save_again_.expires_after(kAgain);
  save_again_.async_wait([this](error_code stopped) {
    if (stopped) return;
    is_saving_ = false;
    if (unsaved_) save_next();
  });
}

void EtcdElection::resign(bool job_ended) {
  if (!leads()) return;
  const auto end = [this](const std::string& lease) {
    ask(
        etcd::end_lease(lease), [](const std::string&) {}, [] {});
  };
  if (job_ended) end(leases_.state);
  end(leases_.leader);
  forget_term();
}

void EtcdElection::forget_term() {
  term_.clear();
  unsaved_.reset();
  on_saved_ = nullptr;
  renew_again_.cancel();
  lease_ends_.cancel();
}

}  // namespace lockstep::inline internal
