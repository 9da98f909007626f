#include "lockstep/agent/run_job.h"

#include <boost/asio/io_context.hpp>

#include "lockstep/agent/live_view.h"
#include "lockstep/agent/local_rendezvous.h"
#include "lockstep/agent/meet.h"
#include "lockstep/launch/launcher.h"

namespace lockstep {

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

}  // namespace lockstep
