#pragma once

#include <memory>

#include <boost/asio/io_context.hpp>

#include "launcher/job/launch_options.h"
#include "launcher/rendezvous/job_rendezvous.h"

namespace lockstep::inline internal {

/// Joins the rendezvous of a job on several machines; its handlers run in `io`. With etcd the
/// agents elect the one that serves it. Else this agent serves it if this machine has the
/// endpoint's address and no agent serves it yet, and connects to it otherwise.
/// Errors: SystemError or UsageError if this machine must serve it and cannot.
std::unique_ptr<JobRendezvous> meet(boost::asio::io_context& io, const LaunchOptions& options);

}  // namespace lockstep::inline internal
