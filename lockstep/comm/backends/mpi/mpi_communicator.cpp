#include "lockstep/comm/backends/mpi/mpi_communicator.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/backends/mpi/mpi_runtime.h"

namespace lockstep::mpi {
namespace {

// MPI counts in int: what is larger goes in pieces.
constexpr std::size_t kLargestPiece = std::size_t{1} << 30;

// Runs start(data, count) for each piece of the segment, none for an empty one.
template <class Start>
void for_each_piece(const Segment& segment, Start&& start) {
  for (std::size_t offset = 0; offset < segment.bytes; offset += kLargestPiece) {
    start(segment.data + offset, static_cast<int>(std::min(kLargestPiece, segment.bytes - offset)));
  }
}

}  // namespace

Communicator::Communicator(const std::vector<int>& world_ranks) {
  MPI_Group world = MPI_GROUP_NULL;
  check(MPI_Comm_group(MPI_COMM_WORLD, &world), "MPI_Comm_group");
  MPI_Group members = MPI_GROUP_NULL;
  const int included =
      MPI_Group_incl(world, static_cast<int>(world_ranks.size()), world_ranks.data(), &members);
  MPI_Group_free(&world);
  check(included, "MPI_Group_incl");
  const int created = MPI_Comm_create_group(MPI_COMM_WORLD, members, 0, &comm_);
  MPI_Group_free(&members);
  check(created, "MPI_Comm_create_group");
  check(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  check(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
  check(MPI_Comm_size(comm_, &size_), "MPI_Comm_size");
  int* limit = nullptr;
  int found = 0;
  check(MPI_Comm_get_attr(comm_, MPI_TAG_UB, &limit, &found), "MPI_Comm_get_attr");
  constexpr int kPromisedByTheStandard = 32767;
  tag_limit_ = found != 0 ? *limit : kPromisedByTheStandard;
}

Communicator::~Communicator() {
  const auto locked = lock();
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized == 0 && comm_ != MPI_COMM_NULL) MPI_Comm_free(&comm_);
}

// Even tags are the user's, odd ones the steps': neither can be taken for the other.
int Communicator::next_step_tag() {
  const int tag = 2 * steps_ + 1;
  steps_ = tag + 2 <= tag_limit_ ? steps_ + 1 : 0;
  return tag;
}

int Communicator::message_tag(int tag) const {
  if (tag < 0 || tag > tag_limit_ / 2) {
    throw UsageError(concat("backend mpi: tag ", tag, " is not 0 to ", tag_limit_ / 2,
                            "; choose a smaller one"));
  }
  return 2 * tag;
}

void Communicator::send(const Segment& segment, int tag, std::vector<MPI_Request>& requests) const {
  for_each_piece(segment, [&](std::byte* data, int count) {
    MPI_Request& request = requests.emplace_back(MPI_REQUEST_NULL);
    check(MPI_Isend(data, count, MPI_BYTE, segment.peer, tag, comm_, &request), "MPI_Isend");
  });
}

void Communicator::receive(const Segment& segment, int tag,
                           std::vector<MPI_Request>& requests) const {
  for_each_piece(segment, [&](std::byte* data, int count) {
    MPI_Request& request = requests.emplace_back(MPI_REQUEST_NULL);
    check(MPI_Irecv(data, count, MPI_BYTE, segment.peer, tag, comm_, &request), "MPI_Irecv");
  });
}

void Communicator::broadcast(const Segment& from_root, std::vector<MPI_Request>& requests) const {
  for_each_piece(from_root, [&](std::byte* data, int count) {
    MPI_Request& request = requests.emplace_back(MPI_REQUEST_NULL);
    check(MPI_Ibcast(data, count, MPI_BYTE, from_root.peer, comm_, &request), "MPI_Ibcast");
  });
}

void Communicator::barrier(std::vector<MPI_Request>& requests) const {
  MPI_Request& request = requests.emplace_back(MPI_REQUEST_NULL);
  check(MPI_Ibarrier(comm_, &request), "MPI_Ibarrier");
}

}  // namespace lockstep::mpi
