#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/ddp/internal/gradient_hooks.h"
#include "lockstep/fully_shard/internal/flat_parameter.h"
#include "lockstep/fully_shard/internal/gather_order.h"
#include "lockstep/fully_shard/internal/parameter_watch.h"

namespace lockstep::inline internal {

/// Decides when the units of a module are gathered, resharded and reduced.
///
/// A unit is gathered when an operator is about to use one of its parameters, and in backward when
/// one of them gets a gradient. Using units ends the use of every gathered one that is neither
/// within them nor around them: in forward that one is resharded, in backward, once it was used
/// there, its gradients are reduced, too. The rest is done at the end of forward, or of
/// backward, where ranks find out together which parameters have a gradient on any rank.
///
/// In backward a unit's use is one of the units around it, too, if a forward has used them: where
/// in a unit lie those inside it is not the same for all its parameters. So ranks make the same
/// collectives if their forwards use the same units in the same order and their backward passes
/// come to the same units, whichever parameters of a unit each of them leaves out.
///
/// Where the ranks that gather a unit share no memory, its values arrive while another computes:
/// the one that it followed in the pass before. At most one unit is on its way.
///
/// Threads: the training thread; in backward autograd's, one at a time.
/// Lifetime: hooks and watches are removed with it.
/// Errors: UsageError for uses outside of forward and backward, and for what backward cannot do;
/// else as Work::wait; after an error in backward discard it.
class ShardedUnits final : public GradientHooks::Target, public ParameterWatcher {
 public:
  struct Unit {
    std::string name;  ///< of its module; the root's is ""
    std::vector<std::unique_ptr<FlatParameter>> flats = {};
    bool is_gathered = false;
    bool is_used_in_forward = false;  ///< in any since the ranks began
    bool is_used_in_backward = false;
  };

  struct Options {
    ProcessGroup group;
    ProcessGroup replicas = {};  ///< the ranks with the same shards; empty: none
    bool reshard_after_forward = true;
    bool gradient_norm = false;  ///< compute it at the end of backward
  };

  explicit ShardedUnits(Options options) : options_(std::move(options)) {}

  /// Before the first forward.
  void add(Unit unit);
  void attach_hooks();

  const std::vector<Unit>& units() const { return units_; }

  /// Around forward. leave_forward, before the end of one that succeeded, is collective where ranks
  /// have read each other's memory: after it they may change their pieces. end_forward does not
  /// communicate.
  void begin_forward();
  void leave_forward();
  void end_forward(bool has_failed) noexcept;

  /// Whether backward exchanges gradients. While it does not they stay, unsharded, with the
  /// module's tensors, and the next backward that does takes them along.
  void set_sync(bool sync) { sync_ = sync; }
  void drop_gradients();
  /// Before the backward pass of a loss of this weight: the average is then that by the weights of
  /// all passes since the last exchange. Collective while sync is on.
  void begin_weighted_pass(double weight);
  const GradientHooks& hooks() const { return *hooks_; }
  /// L2 norm over all ranks, at the end of the last backward that exchanged gradients; empty: none.
  std::optional<double> gradient_norm() const { return gradient_norm_; }

  /// Forgets the pass that was under way; its group has failed.
  void drop_pass() noexcept;
  /// Parameters of all ranks: a flat tensor of FlatParameter::elements(), which nobody writes to.
  using ValuesOf = std::function<at::Tensor(const FlatParameter& flat)>;
  /// From now on passes use these values and no other rank, and their gradients are discarded.
  /// Empty: no longer.
  void compute_alone(ValuesOf values);
  bool is_alone() const { return static_cast<bool>(alone_); }
  /// Parameters of all ranks. Collective, unless this rank computes alone.
  at::Tensor whole(const FlatParameter& flat) const;
  /// Divides the values among the ranks of another group. Collective.
  void regroup(const ProcessGroup& group, const ValuesOf& values);

  void before_use(const std::vector<at::Tensor>& arguments, const at::Tensor* written,
                  const char* operation) override;
  void gradient_ready(std::size_t index, const at::Tensor& arrived) override;
  void backward_ended() override;

 private:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  /// What the gradients are of that were not exchanged yet.
  enum class Passes : std::uint8_t { kNone, kPlain, kWeighted };

  void find_readers();
  std::size_t unit_of(const at::Tensor& argument) const;
  void begin_backward();
  void note_pass(Passes kind);
  void forget_passes();
  void check_unchanged() const;
  [[noreturn]] void refuse_use(const at::Tensor& argument, const char* operation,
                               const char* what) const;
  void use(const std::vector<std::size_t>& units, bool in_backward);
  void use_in_backward(std::size_t index);
  void gather(std::size_t index, bool in_backward);
  static bool gathers_in_background(const Unit& unit);
  void begin_gather(std::size_t index);
  void advance_arriving() const;
  void drop_arriving() noexcept;
  void wait_for_readers() const;
  void reduce(Unit& unit);
  void keep_part(Unit& unit) const;
  void reshard(Unit& unit) noexcept;
  void reshard_all() noexcept;
  bool exchange_what_is_left();
  void measure_gradients();
  std::int64_t version() const;

  Options options_;
  std::vector<Unit> units_;
  bool keeps_parts_ = false;               // in this forward, a backward comes
  bool has_readers_ = false;               // of other ranks' memory
  std::vector<std::string> trained_;       // names, by the hooks' index
  std::vector<std::size_t> unit_of_hook_;  // of the parameter
  std::unique_ptr<GradientHooks> hooks_;
  bool sync_ = true;
  int forwards_ = 0;  // under way, one within another
  bool in_backward_ = false;
  std::size_t last_used_ = kNone;  // alone
  std::int64_t version_ = 0;       // of the shards, in the last forward
  Passes passes_ = Passes::kNone;
  bool begins_weighted_ = false;  // the pass that comes
  double weight_ = 0;             // of the passes
  double scale_ = 1;              // of the averages
  GatherOrder forward_order_;
  GatherOrder backward_order_;
  std::size_t arriving_ = kNone;
  bool has_gathered_ = false;  // a unit, since the last forward began
  std::optional<double> gradient_norm_;
  ValuesOf alone_;
};

}  // namespace lockstep::inline internal
