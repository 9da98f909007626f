# Which folder may include which: a folder sees those of lower layers, and itself.
# One line a folder: "<layer> <folder>". The test `layers` checks every include, and that docs/architecture.md
# draws the same picture.
set(LOCKSTEP_LAYERS
  "0 lockstep/base"
  "1 lockstep/os"
  "2 diagnose/capture"
  "2 lockstep/job"
  "2 lockstep/record"
  "3 lockstep/program"
  "3 lockstep/comm"
  "4 lockstep/comm/backends"
  "4 lockstep/data"
  "4 lockstep/one_copy"
  "4 lockstep/profile"
  "4 lockstep/snapshot"
  "5 lockstep/ddp"
  "5 lockstep/nn"
  "5 lockstep/optim"
  "5 lockstep/pipeline"
  "5 lockstep/rpc"
  "6 lockstep/amp"
  "6 lockstep/fully_shard"
  "6 lockstep/recovery"
  "7 lockstep/parameter_server"
  "7 lockstep/train"
  "3 diagnose/verdict"
  "3 launcher/command_line"
  "3 launcher/job"
  "4 launcher/logs"
  "4 launcher/rendezvous"
  "5 launcher/remote"
  "5 launcher/supervise"
  "6 launcher/agents"
  "6 lockstep/spawn"
  "7 launcher/status"
  "8 launcher/cli"
  "9 tools"
)
# Folders that must not see LibTorch at all: the launcher starts without loading it.
set(LOCKSTEP_FOLDERS_WITHOUT_TORCH lockstep/base lockstep/os lockstep/job lockstep/program lockstep/record
  lockstep/spawn diagnose/capture diagnose/verdict launcher/command_line launcher/job launcher/logs
  launcher/rendezvous launcher/remote launcher/supervise launcher/agents launcher/status launcher/cli)
