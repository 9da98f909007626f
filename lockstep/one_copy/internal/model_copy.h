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

/// Whether the ranks of the group can share copies: some of them share memory.
bool has_shared_copies(const ProcessGroup& group);

/// The parameters of a model and the state of its optimizer, once per machine, in memory that all
/// ranks of the machine map. backward() leaves each rank's gradients in memory that peers read; a
/// step averages them and updates each rank's shard:
///
///     copy.begin_step(indices, …);          // waits for all ranks
///     copy.commit_step();                   // from now on the step happens
///     … for each parameter: copy.adopt_state(…)
///     … for each parameter: copy.part(i), copy.average(…), copy.run_chunk(…)
///     copy.end_step();                      // waits for all ranks again
///
/// A step is a transaction. If a lost rank has handed over its gradients, the others finish its
/// shard (StepLog) and the step ends as if that rank were there; they see the loss in the next
/// collective. If it has not, nothing is changed.
///
/// Over several machines each has a copy, and all make the same steps. First each rank sums a
/// part of its machine's gradients with the ranks that have the same part on other machines
/// (model_copy_machines.cpp). From then on the step is as on one machine.
///
/// The program's view of parameters and state is copied on write: it may change them at any time.
/// The next step publishes such a change, which all ranks must have made equally.
///
/// While a gradient is held, .grad is a tensor of bool on the device `meta`, which has no elements:
/// code that does not know of the one copy fails instead of using one rank's gradient (of the
/// parameter's dtype it would accept in-place operations, which change nothing). Dropping or
/// zeroing it discards the gradient.
///
/// Threads: one at a time.
/// Lifetime: the parameters keep their memory when it is destroyed.
/// Errors: UsageError with the parameter for what the program must not do; else as Work::wait.
class ModelCopy : public std::enable_shared_from_this<ModelCopy> {
 public:
  using Part = CopyLayout::Part;
  /// Size of what is averaged and updated at once: half of a core's second-level cache.
  static constexpr std::int64_t kChunkBytes = 256 * 1024;
  /// The same if a call of the update is cheap: it stays in the first-level cache with the old
  /// values, and the next chunk is prefetched (kAheadBytes of update_loops.h).
  static constexpr std::int64_t kSmallChunkBytes = 4 * 1024;

  /// A parameter of a copy.
  struct Place {
    std::shared_ptr<ModelCopy> copy = {};  ///< Null: the parameter is an ordinary one.
    std::size_t index = 0;
  };
  static Place find(const at::Tensor& parameter);
  /// Whether the process has any copy; if not, find() is not needed.
  static bool any();

  /// Memory of a copy of an earlier generation that has the parameters on all ranks; null: none.
  /// Collective.
  static std::shared_ptr<CopyMemory> find_kept(const ProcessGroup& group,
                                               const std::vector<at::Tensor>& parameters);
  /// Continues with `kept`, from find_kept(); null: moves the parameters, which must have equal
  /// bits on all ranks, to a new memory. Collective. `name`: "model 3".
  /// Errors: UsageError for parameters that cannot be moved.
  static std::shared_ptr<ModelCopy> make(const ProcessGroup& group, const std::string& name,
                                         std::shared_ptr<CopyMemory> kept,
                                         std::vector<at::Tensor> parameters,
                                         std::vector<std::string> names);
  ModelCopy(const ModelCopy&) = delete;
  ModelCopy& operator=(const ModelCopy&) = delete;
  ~ModelCopy();

  const std::string& name() const { return name_; }
  /// If not, hold_gradient() takes what adds up to the average.
  bool is_on_one_machine() const { return machines_.empty(); }
  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  /// The parameter in the copy, whatever the program has changed.
  const at::Tensor& view(std::size_t index) const { return views_[index]; }
  const std::string& name_of(std::size_t index) const { return names_[index]; }

  // Gradients.

  /// Memory that peers read, for a gradient of this rank.
  at::Tensor allocate_gradient(std::int64_t elements, at::ScalarType dtype) const {
    return memory_->gradients().allocate(elements, dtype);
  }
  /// Whether all of it is in such memory, without gaps.
  bool can_hold(const at::Tensor& gradient) const {
    return memory_->gradients().offset_of(gradient).has_value();
  }
  /// Call it before autograd adds to the gradient.
  /// Errors: UsageError if the gradient of the last backward() was neither used nor discarded.
  void before_gradient(std::size_t index);
  /// Whether the gradient is held and was not discarded since.
  bool holds_gradient(std::size_t index) const;
  /// Takes this rank's gradient, for which can_hold() must be true; it has the parameter's strides
  /// and is not written to any more. Undefined: there is none. `weight` multiplies the average;
  /// equal on all ranks, also on those without a gradient.
  void hold_gradient(std::size_t index, const at::Tensor& gradient, double weight = 1);
  /// .grad of the parameter is a sum with the same bits on all ranks, or undefined on all. A step
  /// uses it until a backward pass adds to it. Each rank has the whole sum: a lost rank takes no
  /// part of it along.
  void note_sum(std::size_t index);
  bool has_sum(std::size_t index) const { return held_[index].is_sum; }
  /// Discards all held gradients.
  void give_up_gradients();
  /// The averages over all ranks, in new tensors; undefined if no rank holds a gradient.
  /// Collective.
  std::vector<at::Tensor> averaged_gradients();

  /// Sums of squares of all averages, with equal bits on all ranks.
  struct Squares {
    double current = 0;
    double of_backward = 0;  ///< before they were clipped or unscaled
  };
  /// Averages this rank's part of the gradients in place, unless done. Afterwards every rank holds
  /// the gradients that any rank had. Collective.
  Squares average_in_place(const std::vector<std::size_t>& indices);
  /// After average_in_place(): the step and averaged_gradients() multiply the averages by `factor`,
  /// equal on all ranks.
  void scale_averages(const std::vector<std::size_t>& indices, float factor);
  /// After average_in_place(): clamps the averages to ±`most`, equal on all ranks.
  void clamp_averages(const std::vector<std::size_t>& indices, double most);

  // A step.

  /// Call it before any copy hands over its gradients.
  /// Errors: UsageError for a gradient that only this rank has, and for a parameter that cannot be
  /// returned to the copy.
  void check_step(const std::vector<std::size_t>& indices);
  /// Waits for all ranks, which must step the same parameters. `digest`: of what must be equal on
  /// all ranks, as options and steps of the optimizer. `decider`: the first copy of the step, which
  /// decides whether it happens.
  /// Errors: UsageError on all ranks for a change that ranks did not make equally, and for
  /// gradients that were not exchanged; as Work::wait for a rank that has not handed over its
  /// gradients. Nothing is changed then.
  void begin_step(const std::vector<std::size_t>& indices, std::uint64_t digest,
                  ModelCopy& decider);
  /// Of the decider, over several machines, before it decides: tells all ranks whether this one
  /// refuses the step, and hears it of them. Collective.
  /// Errors: PeerFailed if another rank refuses.
  void tell_machines(bool refuses);
  /// Of the decider: decides whether the step happens, unless a peer has decided. A step for which
  /// this rank has not handed over its gradients does not happen.
  Decision decide_step(Decision wanted) {
    return deciding_ == 0 ? Decision::kVoid : log_->decide(deciding_, wanted);
  }
  bool is_refused() const { return log_->is_decided(deciding_, Decision::kVoid); }
  /// A peer has prevented the step.
  /// Errors: PeerFailed.
  [[noreturn]] void throw_void_step() const { throw_void_step(rank_of(log_->decider())); }
  /// The step happens: publishes the programs' changes to this rank's shard.
  void commit_step();
  /// This rank's shard is updated.
  void complete_share();
  /// Waits for all ranks: everything is updated. Discards the gradients of the step. `run_shard`:
  /// after a rank was lost, updates the shard that part() then returns.
  /// Errors: as Work::wait, with shards partly updated; no further step is possible then.
  void end_step(const std::function<void()>& run_shard);
  /// Ends a step that does not happen.
  void abandon_step() noexcept;
  /// Ends a step of which this rank cannot make its part: its peers finish it. The group fails.
  void leave_step() noexcept;
  /// Between two steps: no further one. Peers do not wait for this rank.
  void leave() noexcept;
  /// Whether shards may be partly updated, permanently.
  bool is_torn() const { return memory_->is_torn(); }
  /// Whether the ranks of its group use it; no rank was lost.
  bool is_in_use() const { return !is_broken_; }
  /// By parameter: 0, or a hash if this rank's program has changed it since the last step.
  std::vector<std::uint64_t> hashes_of_changes() const;
  /// While a lost rank's shard of another copy is updated: part() is empty.
  void set_idle(bool is_idle) { running_share_ = is_idle ? kNoShare : local_.rank(); }

  /// In a step: whether any rank has a gradient.
  bool is_reached(std::size_t index) const { return !sources_[index].empty(); }
  /// The elements of the parameter in the shard that this rank updates: its own, except in
  /// end_step().
  Part part(std::size_t index) const {
    return running_share_ == kNoShare ? Part{} : layout_.part(index, running_share_);
  }
  /// Calls `write`, which overwrites these parts of the shared memory; keeps their old values until
  /// it returns. All ranks divide a shard into the same chunks. At most kChunkBytes of parameters.
  using Piece = StepLog::Piece;
  template <class Write>
  void run_chunk(std::span<const Piece> pieces, Write&& write) {
    run_->prepare([] {});
    for (const Piece& piece : pieces) memory_->before_write(piece.offset, piece.bytes);
    run_->run_chunk(pieces, write);
  }
  Piece piece(const void* first, std::uint64_t bytes) const {
    return {.offset = static_cast<std::uint64_t>(static_cast<const std::byte*>(first) -
                                                 memory_->shared().data()),
            .bytes = bytes};
  }
  /// Averages elements of all ranks' gradients, in rank order, into `target`; at most kChunkBytes.
  void average(std::size_t index, std::int64_t begin, std::int64_t elements,
               std::byte* target) const;
  /// add_up() has space for two numbers per kSumElements of a parameter.
  static constexpr std::int64_t kSumElements = std::int64_t{1} << 15;
  /// Sums numbers of which each is from one rank, and 0 on the others, between begin_step() and
  /// commit_step(). Collective.
  /// Errors: as begin_step().
  void add_up(std::span<double> sums);
  /// Call it instead of the next add_up(): the step does not happen, and that of peers throws
  /// PeerFailed.
  void refuse_step() noexcept;
  /// kChunkBytes, aligned to a cache line.
  std::byte* scratch() const { return scratch_.get(); }

  /// Address in the shared memory of an element of part().
  std::byte* parameter_at(std::size_t index, std::int64_t element) const {
    return shared(layout_.parameter(index)) + element * element_bytes_of(index);
  }
  std::byte* state_at(std::size_t index, std::size_t k, std::int64_t element) const;

  /// Before commit_step(): does everything that may fail in adopt_state().
  /// Errors: UsageError for the state of another optimizer that is no longer here; SystemError if
  /// memory is short.
  void prepare_state(std::size_t index, std::size_t k, const at::Tensor& kept,
                     at::ScalarType dtype) const;
  /// Digest of the elements of a state that adopt_state() would copy, as an integer in a double; 0:
  /// nothing to copy. Ranks must not copy parts of different states.
  double digest_of_new_state(std::size_t index, std::size_t k, const at::Tensor& kept) const;
  /// Makes the copy's state k the parameter's. If `kept`, the optimizer's, is another tensor,
  /// copies this rank's part of it; if it is undefined, fills in `initial`. Returns the tensor that
  /// the optimizer keeps from now on. `kept`: dense, in the parameter's order.
  at::Tensor adopt_state(std::size_t index, std::size_t k, const at::Tensor& kept,
                         at::ScalarType dtype, double initial);

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };

  ModelCopy(const ProcessGroup& group, std::vector<std::vector<int>> machines, std::string name,
            std::vector<at::Tensor> parameters, std::vector<std::string> names,
            std::shared_ptr<CopyMemory> kept);
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
  Squares add_up_squares(const Squares& own) const;
  Part averaged_by(std::size_t index, int local_rank) const;
  std::byte* own_gradient(std::size_t index);
  void check_sum(const char* call, std::size_t index) const;
  void find_sum(std::size_t index);
  void copy_sum(std::size_t index, std::int64_t begin, std::int64_t elements,
                std::byte* target) const;

  void check_placeholder(const char* call, std::size_t index) const;
  void check_gradients_are_held(const char* call, const std::vector<std::size_t>& indices) const;
  at::Tensor averaged_part(std::size_t index);
  /// Publishes the offsets of this rank's gradients at `indices`, and reads those of all ranks.
  void gather_places(const std::vector<std::size_t>& indices);
  /// Every rank's words, by rank; as many on all. Collective over the group.
  std::vector<std::vector<std::int64_t>> gather_words(const std::vector<std::int64_t>& own,
                                                      const char* what) const;
  std::int64_t place_of_gradient(std::size_t index);
  std::vector<std::int64_t> header_words(const std::vector<std::size_t>& indices,
                                         std::uint64_t digest) const;
  void hand_over(const std::vector<std::size_t>& indices, std::uint64_t digest);
  void meet_in_step(const char* what);
  std::span<const std::int64_t> words_of(int rank) const;
  std::string ranks_of_other(std::size_t word) const;
  void check_same_call() const;
  void check_averaged_everywhere(std::size_t index, int averaged, int ranks);
  void check_same_changes_of_averages();
  void find_sources(const std::vector<std::size_t>& indices);
  void forget_sources();
  void meet(const char* what) const;
  int rank_of(int local_rank) const;
  [[noreturn]] void throw_void_step(int rank) const;

  // Several machines (model_copy_machines.cpp).
  /// Elements of a parameter, of which the sums are exchanged together with others.
  struct Summed {
    std::size_t index;
    std::int64_t begin;
    std::int64_t elements;
  };
  struct Exchange {
    std::vector<Summed> parts = {};
    at::Tensor sums = {};
    Work work = {};
  };
  void average_over_machines(const std::vector<std::size_t>& indices, std::uint64_t digest);
  std::vector<std::size_t> compare_machines(const std::vector<std::size_t>& indices,
                                            std::uint64_t digest);
  std::vector<std::vector<Summed>> plan_exchanges(const std::vector<std::size_t>& indices) const;
  void exchange_sums(const std::vector<std::size_t>& indices);
  void start_exchange(Exchange& exchange);
  void finish_exchange(Exchange& exchange);
  std::vector<std::vector<std::int64_t>> changes_of_all() const;

  // Changes by the program (model_copy_changes.cpp).
  struct Item {
    std::size_t index;
    std::optional<std::size_t> state;  ///< Unset: the parameter itself.
    std::uint64_t offset;
    std::int64_t element_bytes;
  };
  using Pages = std::vector<PrivateMapping::Range>;
  std::vector<Item> items() const;
  bool lies_in_copy(std::size_t index) const;
  void bring_back_parameters();
  void find_changes();
  void check_changes();
  void publish_changes(int of_share) const;
  std::string describe(const Item& item) const;

  void forget_step() noexcept;
  void note_loss(const Error& error);
  [[noreturn]] void throw_broken() const;
  /// Ranks of this machine that have left the copy, by their ranks in the group.
  std::vector<int> absent_ranks() const;
  void finish_share(int of_share, const std::function<void()>& run_shard);
  StepLog::Sizes log_sizes() const;

  // Constant after construction.
  ProcessGroup group_;
  std::vector<std::vector<int>> machines_;  ///< By machine, ranks of the group; empty: one machine.
  ProcessGroup local_;                      ///< The ranks of this machine, which number shards.
  std::string name_;
  std::vector<at::Tensor> parameters_;
  std::vector<std::string> names_;
  std::vector<Element> elements_;
  CopyLayout layout_;
  /// Which rank of a machine averages what: as layout_, but equal on all machines. So it is divided
  /// among the first ranks of each, as many as the smallest machine has.
  CopyLayout averages_;
  std::shared_ptr<CopyMemory> memory_;
  bool is_kept_;  ///< The memory is that of an earlier generation.
  SharedMapping log_memory_;
  bool is_registered_ = false;
  std::vector<at::Tensor> views_;         ///< What parameters are, in the mapping copied on write.
  std::vector<at::Tensor> placeholders_;  ///< of bool, on the device meta
  std::unique_ptr<std::byte[], Free> scratch_;
  std::unique_ptr<std::byte[], Free> zeros_;  ///< Of a rank without a gradient.

  struct Held {
    at::Tensor gradient = {};
    std::int64_t version = 0;  ///< of the placeholder, or of the sum
    double weight = 1;
    /// This rank's part is the average over all ranks, yet to be multiplied by `factor`.
    bool is_averaged = false;
    float factor = 1;
    std::optional<double> squares = {};  ///< of that part, before it was changed
    std::uint64_t made = 0;  ///< hash of what was made of the averages, or of the sum, since
    /// .grad is a sum that all ranks have; `gradient` is it while ranks hand over and step.
    bool is_sum = false;
    const void* sum = nullptr;  ///< where it was
  };
  std::vector<Held> held_;
  /// What optimizers keep; undefined in memory of an earlier generation until their first step.
  std::vector<std::array<at::Tensor, CopyLayout::kStates>> states_;

  // What ranks write about steps. Norms and averages have step numbers too. A rank hands over
  // whether its program has changed anything, a digest of what must be equal, one of what was made
  // of averages, the places of its gradients, and the digests of the changes.
  static constexpr std::size_t kCallWord = 1;
  static constexpr std::size_t kMadeWord = 2;
  static constexpr std::size_t kHeaderWords = 3;
  std::unique_ptr<StepLog> log_;
  std::uint64_t step_ = 0;
  std::uint64_t deciding_ = 0;  ///< The step on which is decided; 0: none is under way.
  bool is_broken_ = false;      ///< A rank was lost: there is no further step.
  std::optional<std::vector<int>> lost_ranks_{};       ///< Of the group; once the loss is noted.
  std::vector<std::vector<std::int64_t>> words_ = {};  ///< By rank, over several machines.

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

/// The parameters that are in copies of this process, and the ordinary ones.
struct CopyPlaces {
  explicit CopyPlaces(const std::vector<at::Tensor>& parameters);
  /// Those whose gradients are this rank's alone until ranks average them. The others are ordinary,
  /// also those of which .grad is a sum that all ranks have.
  static CopyPlaces of_own_gradients(const std::vector<at::Tensor>& parameters);

  /// See ModelCopy, for all copies.
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

 private:
  using IsOrdinary = bool (*)(const ModelCopy& copy, std::size_t index);
  CopyPlaces(const std::vector<at::Tensor>& parameters, IsOrdinary is_ordinary);
};

/// The averages over all ranks: copies for one copy per machine, else what .grad holds. Collective
/// if there is a copy.
std::vector<at::Tensor> averaged_gradients_of(const std::vector<at::Tensor>& parameters);

/// A step of an optimizer: the steps of all copies whose parameters it updates, as one transaction.
/// Errors: as ModelCopy.
class CopySteps {
 public:
  CopySteps() = default;
  CopySteps(const CopySteps&) = delete;
  CopySteps& operator=(const CopySteps&) = delete;
  /// If the step did not end: it does not happen on any rank, or the peers make it without this
  /// rank.
  ~CopySteps();

  /// `parameters`: all of the optimizer's. `digest`: as ModelCopy::begin_step().
  void begin(const std::vector<at::Tensor>& parameters, std::uint64_t digest);
  /// When all that may be refused was: nothing is written to a copy before.
  /// Errors: PeerFailed where a peer has refused.
  void commit();
  /// `run_shard`: as ModelCopy::end_step().
  void end(const std::function<void()>& run_shard);

 private:
  std::vector<std::shared_ptr<ModelCopy>> copies_;
  enum class Phase {
    kBeginning,
    kBegun,  ///< All copies have begun their step.
    kTold,   ///< All machines know what this rank decides.
    kCommitted,
  };
  Phase phase_ = Phase::kBeginning;
};

}  // namespace lockstep::inline internal
