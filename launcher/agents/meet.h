#pragma once

#include <memory>

#include <boost/asio/io_context.hpp>

#include "launcher/job/launch_options.h"
#include "launcher/rendezvous/job_rendezvous.h"

namespace lockstep::inline internal {

/// Takes part in the rendezvous of a job on several machines. Its agents elect the one that serves
/// it where there is an etcd; else this one does where this machine has the address of the endpoint
/// and nobody serves it yet, and joins it otherwise. It runs in `io`.
/// Errors: SystemError or UsageError when this machine is to serve it and cannot.
std::unique_ptr<JobRendezvous> meet(boost::asio::io_context& io, const LaunchOptions& options);

}  // namespace lockstep::inline internal
