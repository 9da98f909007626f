#include "lockstep/recovery/internal/step_machine.h"

namespace lockstep::inline internal {
namespace {

using Action = RecoveryAction;
using Phase = RecoveryPhase;

}  // namespace

const char* name_of(RecoveryPhase phase) {
  switch (phase) {
    case Phase::kInactive:
      return "inactive";
    case Phase::kTraining:
      return "training";
    case Phase::kDiscarding:
      return "discarding";
    case Phase::kGroupLost:
      return "group lost";
    case Phase::kJoining:
      return "joining";
    case Phase::kReceived:
      return "received";
    case Phase::kSurvivors:
      return "survivors";
    case Phase::kFinishing:
      return "finishing";
    case Phase::kEnded:
      return "ended";
  }
  return "";
}

const char* name_of(RecoveryAction action) {
  switch (action) {
    case Action::kReturn:
      return "return";
    case Action::kDecline:
      return "decline";
    case Action::kRunAlone:
      return "run alone";
    case Action::kRunInStep:
      return "run in the step";
    case Action::kFailPositionsDiffer:
      return "fail: positions differ";
    case Action::kFailStateLost:
      return "fail: the state is lost";
    case Action::kGiveUp:
      return "give up: the state is lost";
    case Action::kAnnounceState:
      return "announce the state";
    case Action::kAnnounceEnd:
      return "announce the end";
    case Action::kLeaveGroup:
      return "leave the group";
    case Action::kGoOnAlone:
      return "go on alone";
    case Action::kTakePlace:
      return "take a rank";
    case Action::kRollBack:
      return "roll back";
    case Action::kRemember:
      return "remember";
    case Action::kBeginInterval:
      return "begin an interval";
    case Action::kTakeState:
      return "take the state";
    case Action::kFormGroup:
      return "form the group";
    case Action::kGatherReports:
      return "gather reports";
    case Action::kFormSurvivors:
      return "form the group of survivors";
    case Action::kExchangeState:
      return "exchange the state";
    case Action::kLoadSnapshot:
      return "load a snapshot";
    case Action::kCompareSnapshot:
      return "compare the snapshot";
    case Action::kJoinAll:
      return "join all";
    case Action::kKeepShards:
      return "keep shards";
    case Action::kCompareReplicas:
      return "compare replicas";
    case Action::kKeepCopy:
      return "keep a copy";
    case Action::kSaveSnapshot:
      return "save a snapshot";
    case Action::kCheckGeneration:
      return "check the generation";
    case Action::kAwaitVerdict:
      return "await the launcher's verdict";
    case Action::kJoinSurvivors:
      return "join the survivors";
    case Action::kRunSection:
      return "run the section";
    case Action::kBarrier:
      return "barrier";
  }
  return "";
}

}  // namespace lockstep::inline internal
