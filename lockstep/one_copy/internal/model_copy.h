#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/kernels/element.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/one_copy/internal/copy_layout.h"
#include "lockstep/one_copy/internal/copy_memory.h"
#include "lockstep/one_copy/internal/step_log.h"

namespace lockstep::inline internal {

/// The parameters of a model and the state of its optimizer, once on a machine, in memory that all
/// ranks of the group map. backward() leaves each rank's own gradients in memory that peers read; a
/// step averages and updates each rank's share:
///
///   copy.begin_step(indices, …);          // meets all ranks
///   copy.commit_step();                   // from now on the step happens
///   … for each parameter: copy.adopt_state(…)
///   … for each parameter: copy.part(i), copy.average(…), copy.run_chunk(…)
///   copy.end_step();                      // meets all ranks again
///
/// A step is a transaction. Where a rank is lost that has handed over its gradients, the others
/// finish its share (StepLog) and the step ends as if it were there; they see the loss at the next
/// collective. Where a rank has not, nothing is changed.
///
/// What the program sees of parameters and state is copied on write: it may change them at any
/// time. The next step publishes such a change, which all ranks must have made alike.
///
/// While a gradient is held, .grad is a tensor on the device `meta`, which has no elements to read:
/// whatever does not know of the one copy fails instead of using one rank's gradient. Dropping or
/// zeroing it gives the gradient up.
///
/// Threads: one at a time.
/// Lifetime: the parameters keep their memory, as any other, when it is gone.
/// Errors: UsageError for what the program must not do, naming the parameter; else as Work::wait.
class ModelCopy : public std::enable_shared_from_this<ModelCopy> {
 public:
  using Part = CopyLayout::Part;
  /// What is averaged and updated at a time: half of a core's second cache.
  static constexpr std::int64_t kChunkBytes = 256 * 1024;
  /// The same where a call of the update costs little: it stays in the first cache with the old
  /// values, and the next chunk is fetched meanwhile (kAheadBytes of update_loops.h).
  static constexpr std::int64_t kSmallChunkBytes = 4 * 1024;

  /// A parameter of a copy.
  struct Place {
    std::shared_ptr<ModelCopy> copy = {};  ///< Null: the parameter is an ordinary one.
    std::size_t index = 0;
  };
  static Place find(const at::Tensor& parameter);
  /// Whether the process has any copy: without one find() need not be called.
  static bool any();

  /// Memory of a copy of an earlier generation, in which the parameters lie on all ranks; null:
  /// there is none. Collective.
  static std::shared_ptr<CopyMemory> find_kept(const ProcessGroup& group,
                                               const std::vector<at::Tensor>& parameters);
  /// Continues in `kept`, that of find_kept(); null: moves the parameters, which are the same bits
  /// on all ranks, to a new one. Collective. `name`: "model 3".
  /// Errors: UsageError for parameters that cannot be moved.
  static std::shared_ptr<ModelCopy> make(const ProcessGroup& group, const std::string& name,
                                         std::shared_ptr<CopyMemory> kept,
                                         std::vector<at::Tensor> parameters,
                                         std::vector<std::string> names);
  ModelCopy(const ModelCopy&) = delete;
  ModelCopy& operator=(const ModelCopy&) = delete;
  ~ModelCopy();

  const std::string& name() const { return name_; }
  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  /// The parameter as it lies in the copy, whatever the program has made of it.
  const at::Tensor& view(std::size_t index) const { return views_[index]; }
  const std::string& name_of(std::size_t index) const { return names_[index]; }

  // Gradients.

  /// Memory that peers read, for a gradient of this rank.
  at::Tensor allocate_gradient(std::int64_t elements, at::ScalarType dtype) const {
    return memory_->gradients().allocate(elements, dtype);
  }
  /// Whether all of it lies in such memory, without gaps.
  bool can_hold(const at::Tensor& gradient) const {
    return memory_->gradients().offset_of(gradient).has_value();
  }
  /// Before autograd adds to the gradient. Errors: UsageError where that of the last backward()
  /// was neither used nor given up.
  void before_gradient(std::size_t index);
  /// Whether the gradient is held and was not given up since.
  bool holds_gradient(std::size_t index) const;
  /// Takes this rank's gradient, of which can_hold() is true. It lies as the parameter does, and is
  /// not written to any more. Undefined: there is none. The average is multiplied by `weight`, the
  /// same on all ranks, also on those without a gradient.
  void hold_gradient(std::size_t index, const at::Tensor& gradient, double weight = 1);
  /// Forgets all gradients that are held.
  void give_up_gradients();
  /// The averages over all ranks, as tensors of the caller's; undefined where no rank holds a
  /// gradient. Collective.
  std::vector<at::Tensor> averaged_gradients();

  /// Sums of squares of all averages, the same bits on all ranks.
  struct Squares {
    double current = 0;
    double of_backward = 0;  ///< before they were clipped or unscaled
  };
  /// Averages this rank's part of the gradients where they lie, unless that was done. Afterwards
  /// every rank holds the gradients that any rank had. Collective.
  Squares average_in_place(const std::vector<std::size_t>& indices);
  /// The step and averaged_gradients() multiply the averages by `factor`. After average_in_place(),
  /// the same on all ranks.
  void scale_averages(const std::vector<std::size_t>& indices, float factor);
  /// After average_in_place(): this rank's part of the averages, where they lie.
  at::Tensor averaged_part(std::size_t index);
  /// After average_in_place(): elements of the averages are then within ±`most`. The same on all
  /// ranks.
  void clamp_averages(const std::vector<std::size_t>& indices, double most);

  // A step.

  /// Before any copy hands over. Errors: UsageError for a gradient that is this rank's alone, and
  /// for a parameter that cannot be brought back to the copy.
  void check_step(const std::vector<std::size_t>& indices);
  /// Meets all ranks, which step the same parameters.
  /// Errors: UsageError on all ranks for a change that ranks did not make alike, and for gradients
  /// that were not exchanged; as Work::wait for a rank that has not handed over its gradients.
  /// Nothing is changed then.
  /// `digest`: of what must be the same on all ranks, as options and steps of the optimizer.
  /// `decider`: the first copy of the step, on which is decided whether it happens.
  void begin_step(const std::vector<std::size_t>& indices, std::uint64_t digest,
                  ModelCopy& decider);
  /// Of the decider: decides whether the step happens, unless a peer has decided. A step for which
  /// this rank has not handed over does not happen.
  Decision decide_step(Decision wanted) {
    return deciding_ == 0 ? Decision::kVoid : log_->decide(deciding_, wanted);
  }
  bool is_refused() const { return log_->is_decided(deciding_, Decision::kVoid); }
  /// A step that does not happen because of a peer. Errors: PeerFailed.
  [[noreturn]] void throw_void_step() const;
  /// The step happens: publishes what programs have changed of this rank's share.
  void commit_step();
  /// This rank's share is updated.
  void complete_share();
  /// Meets all ranks: everything is updated. The gradients of the step are given up.
  /// `run_share`: updates the share that part() is of then, after a rank was lost. Errors: as
  /// Work::wait, with shares half updated; there is no further step then.
  void end_step(const std::function<void()>& run_share);
  /// Ends a step that does not happen.
  void abandon_step() noexcept;
  /// Ends a step of which this rank cannot make its part: its peers finish it. The group ends.
  void leave_step() noexcept;
  /// Between two steps: there is no further one. Peers do not wait for this rank.
  void leave() noexcept;
  /// Shares may be half updated, for good.
  bool is_torn() const { return memory_->is_torn(); }
  /// Whether the ranks of its group see it, but for what programs have changed since the last step.
  bool is_in_use() const { return !is_broken_; }
  /// By parameter: 0, or a hash where this rank's program has changed it since.
  std::vector<std::uint64_t> hashes_of_changes() const;
  /// While another copy's share of a lost rank is run: part() is empty.
  void set_idle(bool is_idle) { running_share_ = is_idle ? kNoShare : group_.rank(); }

  /// In a step: whether any rank has a gradient.
  bool is_reached(std::size_t index) const { return !sources_[index].empty(); }
  /// The elements of the parameter in the share that this rank updates: its own, but in end_step().
  Part part(std::size_t index) const {
    return running_share_ == kNoShare ? Part{} : layout_.part(index, running_share_);
  }
  /// Calls `write`, which overwrites these parts of the shared memory: what they were is kept until
  /// it returns. All ranks divide a share into the same chunks. kChunkBytes of parameters at most.
  using Piece = StepLog::Piece;
  template <class Write>
  void run_chunk(std::span<const Piece> pieces, Write&& write) {
    run_->prepare([] {});
    run_->run_chunk(pieces, write);
  }
  Piece piece(const void* first, std::uint64_t bytes) const {
    return {.offset = static_cast<std::uint64_t>(static_cast<const std::byte*>(first) -
                                                 memory_->shared().data()),
            .bytes = bytes};
  }
  /// Averages elements of the gradient of all ranks, in rank order, to `target`; kChunkBytes at
  /// most.
  void average(std::size_t index, std::int64_t begin, std::int64_t elements,
               std::byte* target) const;
  /// Two numbers for each kSumElements of a parameter can be added up.
  static constexpr std::int64_t kSumElements = std::int64_t{1} << 15;
  /// Adds up numbers of which each is of one rank, and 0 on the others, between begin_step() and
  /// commit_step(). Collective. Errors: as begin_step().
  void add_up(std::span<double> sums);
  /// Instead of the next add_up(): the step does not happen, and that of peers throws PeerFailed.
  void refuse_step() noexcept;
  /// kChunkBytes, aligned to a cache line.
  std::byte* scratch() const { return scratch_.get(); }

  /// The shared memory of an element of part().
  std::byte* parameter_at(std::size_t index, std::int64_t element) const {
    return shared(layout_.parameter(index)) + element * element_bytes_of(index);
  }
  std::byte* state_at(std::size_t index, std::size_t k, std::int64_t element) const;

  /// Before commit_step(): all that may fail in adopt_state(). Errors: UsageError for the state of
  /// another optimizer that has lost its place here; SystemError where memory is short.
  void prepare_state(std::size_t index, std::size_t k, const at::Tensor& kept,
                     at::ScalarType dtype) const;
  /// Of the elements of a state that adopt_state() would take over, as a whole number that a double
  /// holds; 0: it has nothing to take over. Ranks must not take over parts of different states.
  double digest_of_new_state(std::size_t index, std::size_t k, const at::Tensor& kept) const;
  /// Makes the copy's state k that of the parameter: where `kept`, the optimizer's, is another
  /// tensor, takes over this rank's part of it; where it is undefined, fills in `initial`. Returns
  /// the tensor that the optimizer keeps from now on. `kept`: dense, in the parameter's order.
  at::Tensor adopt_state(std::size_t index, std::size_t k, const at::Tensor& kept,
                         at::ScalarType dtype, double initial);

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };

  ModelCopy(const ProcessGroup& group, std::string name, std::vector<at::Tensor> parameters,
            std::vector<std::string> names, std::shared_ptr<CopyMemory> kept);
  void make_memory();
  void add_to_registry();
  void check_parameters() const;
  void move_parameters();
  at::Tensor tensor_over(std::uint64_t offset, const at::Tensor& model, at::ScalarType dtype) const;
  std::byte* shared(std::uint64_t offset) const { return memory_->shared().data() + offset; }
  std::byte* own(std::uint64_t offset) const { return memory_->own().data() + offset; }
  std::int64_t element_bytes_of(std::size_t index) const {
    return static_cast<std::int64_t>(element_bytes(elements_[index]));
  }

  void average_sources(std::size_t index, std::int64_t begin, std::int64_t elements,
                       std::byte* target) const;
  void copy_averages(std::size_t index, std::int64_t begin, std::int64_t elements,
                     std::byte* target) const;
  Squares average_part(std::size_t index);

  void check_gradients_are_held(const char* call, const std::vector<std::size_t>& indices) const;
  /// Says where this rank's gradients at `indices` lie, and learns it of all ranks.
  void gather_places(const std::vector<std::size_t>& indices);
  void hand_over(const std::vector<std::size_t>& indices, std::uint64_t digest);
  void meet_in_step(const char* what);
  void check_same_call() const;
  void find_sources(const std::vector<std::size_t>& indices);
  void forget_sources();
  void meet(const char* what) const;

  // Changes by the program (model_copy_changes.cpp).
  struct Item {
    std::size_t index;
    std::optional<std::size_t> state;  ///< Unset: the parameter itself.
    std::uint64_t offset;
    std::int64_t element_bytes;
  };
  using Pages = std::vector<PrivateMapping::Range>;
  std::vector<Item> items() const;
  void bring_back_parameters();
  void find_changes();
  void check_changes();
  void publish_changes(int of_share) const;
  std::string describe(const Item& item) const;

  void forget_step() noexcept;
  void note_loss(const Error& error);
  [[noreturn]] void throw_broken() const;
  void finish_share(int of_share, const std::function<void()>& run_share);
  StepLog::Sizes log_sizes() const;

  // Constant after construction.
  ProcessGroup group_;
  std::string name_;
  std::vector<at::Tensor> parameters_;
  std::vector<std::string> names_;
  std::vector<Element> elements_;
  CopyLayout layout_;
  std::shared_ptr<CopyMemory> memory_;
  bool is_kept_;  ///< The memory is that of an earlier generation.
  SharedMapping log_memory_;
  bool is_registered_ = false;
  std::vector<at::Tensor> views_;         ///< What parameters are, in the mapping copied on write.
  std::vector<at::Tensor> placeholders_;  ///< On the device meta.
  std::unique_ptr<std::byte[], Free> scratch_;
  std::unique_ptr<std::byte[], Free> zeros_;  ///< Of a rank without a gradient.

  struct Held {
    at::Tensor gradient = {};
    std::int64_t placeholder_version = 0;
    double weight = 1;
    /// This rank's part is the average over all ranks, yet to be multiplied by `factor`.
    bool is_averaged = false;
    float factor = 1;
    double squares = 0;  ///< of that part, when it was averaged
  };
  std::vector<Held> held_;
  /// What optimizers keep; undefined in memory of an earlier generation until their first step.
  std::vector<std::array<at::Tensor, CopyLayout::kStates>> states_;

  // What ranks write about steps. Norms and averages have step numbers too. A rank hands over
  // whether its program has changed anything, a digest of what must be alike, the places of its
  // gradients, and the digests of the changes.
  static constexpr std::size_t kHeaderWords = 2;
  std::unique_ptr<StepLog> log_;
  std::uint64_t step_ = 0;
  std::uint64_t deciding_ = 0;  ///< The step on which is decided; 0: none is under way.
  bool is_broken_ = false;      ///< A rank was lost: there is no further step.
  std::vector<int> lost_ranks_ = {};

  // Of the step under way.
  static constexpr int kNoShare = -1;
  int running_share_;
  ModelCopy* decider_ = nullptr;
  std::optional<ShareRun> run_;
  std::vector<std::size_t> stepping_;
  std::vector<Item> items_;
  Pages pages_;                         ///< Own ones: the program may have changed what they hold.
  std::vector<std::uint64_t> changes_;  ///< By item: a digest of what it was changed to, or 0.
  /// What the states were before the copy had them.
  struct Adoption {
    std::size_t index;
    std::size_t k;
    at::Tensor kept;
    double initial;
  };
  std::vector<Adoption> adoptions_;
  bool is_adopted(std::size_t index, std::size_t k, const at::Tensor& kept) const;
  bool is_replaced(std::size_t index, std::size_t k, const at::Tensor& kept) const;
  bool lies_in_place(std::size_t index, std::size_t k, const at::Tensor& kept) const;
  void populate_state(std::size_t index, std::size_t k, at::ScalarType dtype, int of_share) const;
  void write_state(const Adoption& state, int of_share) const;
  /// For each parameter, by rank, where its gradient begins; null: a rank has none. Empty: no rank
  /// has one.
  std::vector<std::vector<const std::byte*>> sources_;
};

/// The parameters of which this process has one copy with others, and the others.
struct CopyPlaces {
  explicit CopyPlaces(const std::vector<at::Tensor>& parameters);

  /// As ModelCopy's, of all copies.
  ModelCopy::Squares average_in_place() const;
  void scale_averages(float factor) const;
  void clamp_averages(double most) const;
  /// Whether this rank holds a gradient; after average_in_place() whether any rank does.
  bool hold_gradients() const;
  bool are_torn() const;
  void leave() const;

  struct OfCopy {
    std::shared_ptr<ModelCopy> copy;
    std::vector<std::size_t> indices;  ///< Each once.
  };
  std::vector<OfCopy> copies = {};
  std::vector<at::Tensor> ordinary = {};
};

/// The averages over all ranks: of one copy per machine copies, of others what .grad holds.
/// Collective where there is a copy.
std::vector<at::Tensor> averaged_gradients_of(const std::vector<at::Tensor>& parameters);

/// Of a step of an optimizer: the steps of all copies of which it updates parameters, as one.
/// Errors: as ModelCopy.
class CopySteps {
 public:
  CopySteps() = default;
  CopySteps(const CopySteps&) = delete;
  CopySteps& operator=(const CopySteps&) = delete;
  /// Where the step did not end: it does not happen on any rank, or the peers make it alone.
  ~CopySteps();

  /// `parameters`: all of the optimizer's. `digest`: as ModelCopy::begin_step().
  void begin(const std::vector<at::Tensor>& parameters, std::uint64_t digest);
  /// When all that may be refused was: nothing is written to a copy before.
  /// Errors: PeerFailed where a peer has refused.
  void commit();
  /// `run_share`: as ModelCopy::end_step().
  void end(const std::function<void()>& run_share);

 private:
  std::vector<std::shared_ptr<ModelCopy>> copies_;
  bool is_committed_ = false;
};

}  // namespace lockstep::inline internal
