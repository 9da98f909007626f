#include "lockstep/cli/rendezvous_flags.h"

#include <algorithm>
#include <optional>
#include <sstream>

#include "lockstep/base/concat.h"
#include "lockstep/base/error.h"
#include "lockstep/base/parse_number.h"
#include "lockstep/cli/nearest_name.h"

namespace lockstep {
namespace {

// torchrun's defaults.
constexpr std::uint16_t kStaticPort = 29500;
constexpr std::uint16_t kElasticPort = 29400;

struct Endpoint {
  std::string host{};
  std::optional<std::uint16_t> port{};
};

std::uint16_t parse_port(const char* flag, const std::string& text) {
  const auto port = parse_number<int>(text);
  if (!port || *port < 0 || *port > 65535) {
    throw UsageError(concat(flag, ": '", text, "' is no port; give a number up to 65535"));
  }
  return static_cast<std::uint16_t>(*port);
}

// "host", "host:port", "[::1]:port".
Endpoint parse_endpoint(const std::string& text) {
  constexpr const char* kFlag = "--rdzv-endpoint";
  std::string host = text;
  std::string rest;
  if (text.starts_with("[")) {
    const auto end = text.find(']');
    if (end == std::string::npos) throw UsageError(concat(kFlag, "='", text, "': no ]"));
    host = text.substr(1, end - 1);
    rest = text.substr(end + 1);
  } else if (std::count(text.begin(), text.end(), ':') == 1) {
    host = text.substr(0, text.find(':'));
    rest = text.substr(text.find(':'));
  }
  if (host.empty() || (!rest.empty() && rest[0] != ':')) {
    throw UsageError(concat(kFlag, "='", text, "': give HOST, HOST:PORT or [IPV6]:PORT"));
  }
  if (rest.empty()) return {host, std::nullopt};
  return {host, parse_port(kFlag, rest.substr(1))};
}

int parse_node_count(const std::string& text) {
  if (text.empty()) return 1;
  const auto colon = text.find(':');
  const auto least = parse_number<int>(text.substr(0, colon));
  const auto most = colon == std::string::npos ? least : parse_number<int>(text.substr(colon + 1));
  if (!least || !most || *least < 1 || *most < *least) {
    throw UsageError(concat("--nnodes='", text, "': give a number of machines from 1"));
  }
  if (*least != *most) {
    throw UsageError(concat("--nnodes=", text,
                            ": this version needs one fixed number of machines, ",
                            "as in --nnodes=", *most));
  }
  return *least;
}

int parse_node_rank(const std::string& text, int node_count) {
  const auto rank = parse_number<int>(text.empty() ? "0" : text);
  if (!rank || *rank < 0 || *rank >= node_count) {
    throw UsageError(concat("--node-rank='", text, "' with --nnodes=", node_count,
                            ": node ranks are 0 to ", node_count - 1));
  }
  return *rank;
}

void check_backend(const RunFlags& flags, int node_count) {
  const std::string& backend = flags.rdzv_backend;
  if (!backend.empty() && backend != "static" && backend != "c10d") {
    throw UsageError(concat("--rdzv-backend=", backend,
                            " is not in this version; use static or c10d",
                            did_you_mean(backend, {"static", "c10d"})));
  }
  if (flags.standalone && node_count > 1) {
    throw UsageError(
        concat("--standalone is for one machine, but --nnodes=", node_count, "; drop one of them"));
  }
  if (backend == "c10d" && node_count > 1 && flags.node_rank.empty()) {
    throw UsageError(
        "--rdzv-backend=c10d does not yet number the machines itself: give each its --node-rank, "
        "from 0, and all the same --rdzv-endpoint=HOST:PORT, an address of the one with rank 0");
  }
}

// Nothing in this version waits at a rendezvous: what torchrun's backends know is accepted.
void check_configuration(const std::string& text) {
  const std::vector<std::string> known = {"join_timeout",
                                          "last_call_timeout",
                                          "close_timeout",
                                          "heartbeat_timeout",
                                          "keep_alive_interval",
                                          "keep_alive_max_attempt",
                                          "read_timeout",
                                          "store_type",
                                          "is_host",
                                          "timeout",
                                          "rank"};
  std::istringstream entries(text);
  for (std::string entry; std::getline(entries, entry, ',');) {
    const auto equals = entry.find('=');
    const std::string key = entry.substr(0, equals);
    if (equals == std::string::npos) {
      throw UsageError(concat("--rdzv-conf: '", entry, "' is not KEY=VALUE"));
    }
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      throw UsageError(concat("--rdzv-conf: unknown key '", key, "'", did_you_mean(key, known)));
    }
  }
}

std::string master_address_of(const RunFlags& flags, const Endpoint& endpoint, int node_count,
                              int node_rank) {
  if (!endpoint.host.empty()) return endpoint.host;
  if (!flags.master_addr.empty()) return flags.master_addr;
  if (!flags.local_addr.empty() && node_rank == 0) return flags.local_addr;
  if (node_count == 1) return "127.0.0.1";
  throw UsageError(concat("--nnodes=", node_count,
                          " needs --master-addr=HOST, an address of the machine with rank 0"));
}

}  // namespace

RendezvousOptions resolve_rendezvous(const RunFlags& flags) {
  RendezvousOptions options;
  options.node_count = parse_node_count(flags.nnodes);
  options.node_rank = parse_node_rank(flags.node_rank, options.node_count);
  check_backend(flags, options.node_count);
  check_configuration(flags.rdzv_conf);

  std::optional<std::uint16_t> port;
  if (!flags.master_port.empty()) port = parse_port("--master-port", flags.master_port);
  if (flags.standalone) {
    options.master_port = port.value_or(0);
    return options;
  }
  Endpoint endpoint;
  if (!flags.rdzv_endpoint.empty()) endpoint = parse_endpoint(flags.rdzv_endpoint);
  if (endpoint.port) port = endpoint.port;
  options.master_address =
      master_address_of(flags, endpoint, options.node_count, options.node_rank);
  if (options.node_count == 1) {
    options.master_port = port.value_or(0);
    return options;
  }
  options.master_port = port.value_or(flags.rdzv_backend == "c10d" ? kElasticPort : kStaticPort);
  if (options.master_port == 0) {
    throw UsageError(
        concat("port 0 with --nnodes=", options.node_count,
               ": all machines must know the port; give one, as in --master-port=", kStaticPort));
  }
  return options;
}

}  // namespace lockstep
