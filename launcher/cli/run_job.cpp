#include "launcher/cli/run_job.h"

#include <boost/asio/io_context.hpp>

#include "launcher/agents/local_rendezvous.h"
#include "launcher/agents/meet.h"
#include "launcher/status/live_view.h"
#include "launcher/supervise/launcher.h"

namespace lockstep::inline internal {

int run_job(const LaunchOptions& options, UniqueFd health) {
  boost::asio::io_context io{1};
  LiveView view(io, std::move(health));
  if (options.rendezvous.max_nodes > 1) {
    const auto rendezvous = meet(io, options);
    return launch(options, *rendezvous, view);
  }
  LocalRendezvous rendezvous(io, rules_of(options), options.master_address);
  return launch(options, rendezvous, view);
}

}  // namespace lockstep::inline internal
