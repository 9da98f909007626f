#include "launcher/cli/rendezvous_flags.h"

#include <algorithm>
#include <optional>

#include "launcher/command_line/endpoint.h"
#include "launcher/command_line/flag_values.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/parse_number.h"
#include "lockstep/base/internal/text.h"
#include "lockstep/os/socket/tcp_socket.h"

namespace lockstep::inline internal {
namespace {

// torchrun's defaults.
constexpr std::uint16_t kStaticPort = 29500;
constexpr std::uint16_t kElasticPort = 29400;
constexpr std::uint16_t kEtcdPort = 2379;

struct NodeCounts {
  int min = 1;
  int max = 1;
};

NodeCounts parse_node_counts(const std::string& text) {
  if (text.empty()) return {};
  const auto colon = text.find(':');
  const auto least = parse_number<int>(text.substr(0, colon));
  const auto most = colon == std::string::npos ? least : parse_number<int>(text.substr(colon + 1));
  if (!least || !most || *least < 1 || *most < *least) {
    throw UsageError(concat("--nnodes='", text,
                            "': give a number of machines from 1, or MIN:MAX with MIN <= MAX"));
  }
  return {*least, *most};
}

int parse_node_rank(const std::string& text, int node_count) {
  const auto rank = parse_number<int>(text.empty() ? "0" : text);
  if (!rank || *rank < 0 || *rank >= node_count) {
    throw UsageError(concat("--node-rank='", text, "' with --nnodes=", node_count,
                            ": node ranks are 0 to ", node_count - 1));
  }
  return *rank;
}

RendezvousOptions::Backend backend_of(const RunFlags& flags, const NodeCounts& nodes) {
  const std::string& backend = flags.rdzv_backend;
  const std::vector<std::string> known = {"static", "c10d", "etcd", "etcd-v2"};
  if (!backend.empty() && std::ranges::find(known, backend) == known.end()) {
    throw UsageError(concat("--rdzv-backend=", backend,
                            ": unknown backend; use static, c10d or etcd",
                            did_you_mean(backend, known)));
  }
  if (flags.standalone && nodes.max > 1) {
    throw UsageError(concat("--standalone is for one machine, but --nnodes=", flags.nnodes,
                            "; drop one of them"));
  }
  if (backend == "c10d" || flags.standalone) return RendezvousOptions::Backend::kC10d;
  if (backend.starts_with("etcd")) return RendezvousOptions::Backend::kEtcd;
  if (nodes.min != nodes.max) {
    throw UsageError(concat("--nnodes=", flags.nnodes,
                            ": machines that may join and leave cannot be numbered; use "
                            "--rdzv-backend=c10d --rdzv-endpoint=HOST:PORT"));
  }
  return RendezvousOptions::Backend::kStatic;
}

std::chrono::milliseconds seconds_of_key(const std::string& key, const std::string& text) {
  constexpr double kShortestSeconds = 0.001;
  return seconds_of(concat("--rdzv-conf: ", key), text, kShortestSeconds);
}

// --rdzv-conf: torchrun's keys; what has no meaning here (read_timeout, store_type) is accepted.
class Configuration {
 public:
  explicit Configuration(const std::string& text) {
    for (const std::string& entry : comma_list(text)) take(entry);
  }

  void apply(RendezvousOptions& options) const {
    RendezvousTimeouts& timeouts = options.timeouts;
    if (timeout_) timeouts.join = *timeout_;
    if (join_) timeouts.join = *join_;
    if (last_call_) timeouts.last_call = *last_call_;
    const auto attempts = timeouts.keep_alive_limit / timeouts.keep_alive_interval;
    if (interval_) timeouts.keep_alive_interval = *interval_;
    timeouts.keep_alive_limit = timeouts.keep_alive_interval * attempts_.value_or(attempts);
    options.is_host = is_host_;
    if (!etcd_prefix_.empty()) options.etcd_prefix = etcd_prefix_;
  }

 private:
  void take(const std::string& entry) {
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
                                            "rank",
                                            "etcd_prefix",
                                            "protocol",
                                            "cert",
                                            "key",
                                            "cacert"};
    const auto equals = entry.find('=');
    const std::string key = entry.substr(0, equals);
    if (equals == std::string::npos) {
      throw UsageError(concat("--rdzv-conf: '", entry, "' is not KEY=VALUE"));
    }
    const std::string value = entry.substr(equals + 1);
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      const std::string suggestion = did_you_mean(key, known);
      throw UsageError(
          concat("--rdzv-conf: unknown key '", key, "'",
                 suggestion.empty() ? "; lockstep run --help lists them" : suggestion));
    }
    if (key == "timeout") timeout_ = seconds_of_key(key, value);
    if (key == "join_timeout") join_ = seconds_of_key(key, value);
    if (key == "last_call_timeout") last_call_ = seconds_of_key(key, value);
    if (key == "keep_alive_interval") interval_ = seconds_of_key(key, value);
    if (key == "keep_alive_max_attempt") take_attempts(value);
    if (key == "is_host") take_is_host(value);
    if (key == "etcd_prefix") etcd_prefix_ = value;
    const bool is_tls = key == "cert" || key == "key" || key == "cacert";
    if (is_tls || (key == "protocol" && value != "http")) {
      throw UsageError(
          concat("--rdzv-conf: ", entry,
                 ": TLS to etcd is not supported; run `etcd gateway` or a TLS tunnel on each "
                 "machine and give its loopback address as --rdzv-endpoint"));
    }
  }

  void take_attempts(const std::string& value) {
    attempts_ = int_of("--rdzv-conf: keep_alive_max_attempt", value, 1);
  }

  void take_is_host(std::string value) {
    std::ranges::transform(value, value.begin(), [](unsigned char c) { return std::tolower(c); });
    const bool yes = value == "1" || value == "true" || value == "t" || value == "yes";
    const bool no = value == "0" || value == "false" || value == "f" || value == "no";
    if (!yes && !no) throw UsageError(concat("--rdzv-conf: is_host=", value, ": give 1 or 0"));
    is_host_ = yes;
  }

  std::optional<std::chrono::milliseconds> timeout_;
  std::optional<std::chrono::milliseconds> join_;
  std::optional<std::chrono::milliseconds> last_call_;
  std::optional<std::chrono::milliseconds> interval_;
  std::optional<int> attempts_;
  std::optional<bool> is_host_;
  std::string etcd_prefix_;
};

bool is_loopback_name(const std::string& host) {
  return host == "localhost" || is_loopback_address(host);
}

// Where there may be several, separated by commas.
std::vector<HostAndPort> parse_etcd(const std::string& text) {
  std::vector<HostAndPort> addresses;
  for (const std::string& entry : comma_list(text)) {
    const Endpoint endpoint = parse_endpoint(entry);
    addresses.push_back({endpoint.host, endpoint.port.value_or(kEtcdPort)});
  }
  if (addresses.empty()) {
    throw UsageError(
        "--rdzv-backend=etcd needs --rdzv-endpoint=HOST[:PORT][,HOST[:PORT]...], the addresses of "
        "etcd");
  }
  return addresses;
}

// Whoever reaches the agents' port could otherwise stop the job, or take part in it.
void check_secret(const RendezvousOptions& rendezvous) {
  if (!rendezvous.secret.empty()) return;
  const auto is_near = [](const HostAndPort& address) { return is_loopback_name(address.host); };
  const bool is_etcd = rendezvous.backend == RendezvousOptions::Backend::kEtcd;
  if (is_etcd ? std::ranges::all_of(rendezvous.etcd, is_near) : is_loopback_name(rendezvous.host)) {
    return;
  }
  throw UsageError(concat("--nnodes=", rendezvous.max_nodes, " at ",
                          is_etcd ? rendezvous.etcd.front().host : rendezvous.host,
                          ": the job has no secret, with which its machines authenticate each "
                          "other; create one (umask 077; openssl rand -hex 32 > job.secret), copy "
                          "it to each machine and add --secret-file=job.secret, or set "
                          "LOCKSTEP_JOB_SECRET"));
}

std::string host_for_several(const RunFlags& flags, const Endpoint& endpoint, int node_rank,
                             bool numbered) {
  if (!endpoint.host.empty()) return endpoint.host;
  if (!numbered) {
    throw UsageError(concat("--nnodes=", flags.nnodes,
                            " with --rdzv-backend=c10d needs --rdzv-endpoint=HOST[:PORT], an "
                            "address of one of the machines"));
  }
  if (!flags.master_addr.empty()) return flags.master_addr;
  if (!flags.local_addr.empty() && node_rank == 0) return flags.local_addr;
  throw UsageError(concat("--nnodes=", flags.nnodes,
                          " needs --master-addr=HOST, an address of the machine with rank 0"));
}

std::string address_on_one_machine(const RunFlags& flags, const Endpoint& endpoint) {
  if (!endpoint.host.empty()) return endpoint.host;
  if (!flags.master_addr.empty()) return flags.master_addr;
  return flags.local_addr.empty() ? "127.0.0.1" : flags.local_addr;
}

}  // namespace

JobPlace resolve_rendezvous(const RunFlags& flags, const std::string& secret) {
  JobPlace place;
  RendezvousOptions& options = place.rendezvous;
  const NodeCounts nodes = parse_node_counts(flags.nnodes);
  options.min_nodes = nodes.min;
  options.max_nodes = nodes.max;
  options.backend = backend_of(flags, nodes);
  const bool numbered = options.backend == RendezvousOptions::Backend::kStatic;
  if (numbered) options.node_rank = parse_node_rank(flags.node_rank, nodes.max);
  Configuration(flags.rdzv_conf).apply(options);

  std::optional<std::uint16_t> port;
  if (!flags.master_port.empty()) port = parse_port("--master-port", flags.master_port);
  if (flags.standalone) {
    place.master_port = port.value_or(0);
    return place;
  }
  options.own_address = flags.local_addr;
  options.secret = secret;
  if (options.backend == RendezvousOptions::Backend::kEtcd && nodes.max > 1) {
    if (flags.rdzv_id.empty()) {
      throw UsageError(
          "--rdzv-backend=etcd needs --rdzv-id=NAME, the same on each machine: other jobs may use "
          "that etcd");
    }
    options.etcd = parse_etcd(flags.rdzv_endpoint);
    check_secret(options);
    return place;
  }
  Endpoint endpoint;
  if (!flags.rdzv_endpoint.empty()) endpoint = parse_endpoint(flags.rdzv_endpoint);
  if (endpoint.port) port = endpoint.port;
  if (nodes.max == 1) {
    place.master_address = address_on_one_machine(flags, endpoint);
    place.master_port = port.value_or(0);
    return place;
  }
  options.host = host_for_several(flags, endpoint, options.node_rank, numbered);
  options.port = port.value_or(numbered ? kStaticPort : kElasticPort);
  if (options.port == 0) {
    throw UsageError(concat("port 0 with --nnodes=", flags.nnodes,
                            ": all machines must know the port; give one, as in ",
                            numbered ? "--master-port=29500" : "--rdzv-endpoint=HOST:29400"));
  }
  if (numbered && !options.is_host) options.is_host = options.node_rank == 0;
  check_secret(options);
  return place;
}

}  // namespace lockstep::inline internal
