// All-reduce by a library of somebody else's: MPI, or oneCCL (-DWITH_ONECCL) started by MPI.
//
//   mpiexec -n 2 peer_all_reduce ROUNDS SAMPLE_MS NEW_FILE SIZE...
//
// bench/peers/run.py compiles and starts it.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <mpi.h>
#ifdef WITH_ONECCL
#include <oneapi/ccl.hpp>
#endif

#include "bench/peers/timing_loop.h"

namespace {

using lockstep::bench::Peer;

Peer mpi_peer() {
  Peer peer{};
  MPI_Comm_rank(MPI_COMM_WORLD, &peer.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &peer.ranks);
  peer.all_reduce = [](float* values, std::size_t elements) {
    MPI_Allreduce(MPI_IN_PLACE, values, static_cast<int>(elements), MPI_FLOAT, MPI_SUM,
                  MPI_COMM_WORLD);
  };
  peer.barrier = [] { MPI_Barrier(MPI_COMM_WORLD); };
  peer.max = [](std::vector<double>& values) {
    MPI_Allreduce(MPI_IN_PLACE, values.data(), static_cast<int>(values.size()), MPI_DOUBLE, MPI_MAX,
                  MPI_COMM_WORLD);
  };
  return peer;
}

#ifdef WITH_ONECCL
// MPI tells the ranks of each other; the sum is oneCCL's.
void sum_by_oneccl(Peer& peer) {
  ccl::init();
  ccl::kvs::address_type address;
  ccl::shared_ptr_class<ccl::kvs> store;
  if (peer.rank == 0) {
    store = ccl::create_main_kvs();
    address = store->get_address();
  }
  MPI_Bcast(address.data(), static_cast<int>(address.size()), MPI_BYTE, 0, MPI_COMM_WORLD);
  if (peer.rank != 0) store = ccl::create_kvs(address);
  static auto communicator = ccl::create_communicator(peer.ranks, peer.rank, store);
  peer.all_reduce = [](float* values, std::size_t elements) {
    ccl::allreduce(values, values, elements, ccl::reduction::sum, communicator).wait();
  };
}
#endif

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  if (argc < 5) {
    std::fprintf(stderr, "peer_all_reduce: run it by bench/peers/run.py\n");
    return 2;
  }
  Peer peer = mpi_peer();
#ifdef WITH_ONECCL
  sum_by_oneccl(peer);
#endif
  std::vector<std::int64_t> sizes;
  for (int i = 4; i < argc; ++i) sizes.push_back(std::atoll(argv[i]));
  lockstep::bench::run_peer(peer, sizes, std::atoi(argv[1]), std::atof(argv[2]), argv[3]);
  std::fflush(stdout);
  MPI_Finalize();
  return 0;
}
