# Which folder may include which: a folder sees those of lower layers, and itself.
# One line a folder: "<layer> <folder under lockstep/>". Checked by the test `layers`.
set(LOCKSTEP_LAYERS
  "0 base"
  "1 os"
  "2 comm"
  "2 config"
  "2 launch"
  "2 record"
  "3 agent"
  "3 data"
  "3 comm/backends"
  "3 doctor"
  "3 profile"
  "3 remote"
  "3 report"
  "3 snapshot"
  "4 amp"
  "4 ddp"
  "4 inspect"
  "4 nn"
  "4 optim"
  "4 pipeline"
  "4 rpc"
  "5 selfcheck"
  "5 train"
  "6 cli"
  "6 parameter_server"
)
# Folders that must not see LibTorch at all: the launcher starts without loading it.
set(LOCKSTEP_FOLDERS_WITHOUT_TORCH base os config launch agent doctor remote record report cli)
