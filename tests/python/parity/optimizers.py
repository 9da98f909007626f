"""Lockstep's optimizers and schedulers beside PyTorch's: parameters and state of the fused ones bit for bit, of the others
within 1e-6 over 100 steps; learning rates for 1,000 steps; states that either continues from the other's. Lion and LAMB,
which PyTorch has not, are compared with references written from the papers.

    optimizers.py PATH_OF_OPTIMIZERS_WORKER
"""

import copy
import functools
import json
import math
import os
import subprocess
import sys
import tempfile
import unittest
import warnings

warnings.filterwarnings("ignore", message="Failed to initialize NumPy")

import torch

WORKER = sys.argv[1]
SHAPES = [(3, 5), (1,), (0,), (1009,), (257, 130)]
FUSED = {"SGD", "Adam", "AdamW", "Adagrad"}
torch.set_num_threads(1)


def formula(shape, phase):
    values = torch.arange(math.prod(shape), dtype=torch.float64) * 0.7 + phase
    return values.sin().view(shape)


class Lion(torch.optim.Optimizer):
    """Chen et al., arXiv 2302.06675, algorithm 2."""

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0, maximize=False):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay, "maximize": maximize})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                g = -p.grad if group["maximize"] else p.grad
                m = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                update = (beta1 * m + (1 - beta1) * g).sign()
                p.sub_(group["lr"] * (update + group["weight_decay"] * p))
                m.copy_(beta2 * m + (1 - beta2) * g)


class LAMB(torch.optim.Optimizer):
    """You et al., arXiv 1904.00962, algorithm 2, with the identity for phi."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.01, maximize=False):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay,
                                  "maximize": maximize})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                g = -p.grad if group["maximize"] else p.grad
                state = self.state[p]
                if not state:
                    state.update(step=torch.tensor(0.0), exp_avg=torch.zeros_like(p), exp_avg_sq=torch.zeros_like(p))
                state["step"] += 1
                t = state["step"].item()
                m, v = state["exp_avg"], state["exp_avg_sq"]
                m.copy_(beta1 * m + (1 - beta1) * g)
                v.copy_(beta2 * v + (1 - beta2) * g * g)
                r = (m / (1 - beta1**t)) / ((v / (1 - beta2**t)).sqrt() + group["eps"])
                update = r + group["weight_decay"] * p
                norm, update_norm = p.double().norm().item(), update.double().norm().item()
                ratio = norm / update_norm if norm > 0 and update_norm > 0 else 1.0
                p.sub_(group["lr"] * ratio * update)


def cases():
    def case(name, optimizer, options=None, second=None, **more):
        return {"name": name, "optimizer": optimizer, "options": options or {}, "second": second or {}, **more}

    decay, more_decay = {"weight_decay": 0.01}, {"weight_decay": 0.1, "lr": 0.003}
    yield case("sgd", "SGD", {"lr": 0.05})
    yield case("sgd_momentum", "SGD", {"lr": 0.05, "momentum": 0.9, **decay}, {"dampening": 0.1, "lr": 0.02})
    yield case("sgd_nesterov", "SGD", {"lr": 0.05, "momentum": 0.9, "nesterov": True}, {"maximize": True})
    for name in ("Adam", "AdamW"):
        yield case(name, name)
        yield case(f"{name}_decay", name, {"lr": 0.01, **decay}, more_decay)
        yield case(f"{name}_amsgrad", name, {"lr": 0.01, "amsgrad": True, "maximize": True}, {"amsgrad": False})
        yield case(f"{name}_betas", name, {"betas": [0.4, 0.95], "eps": 1e-6}, {"betas": [0.95, 0.999]})
    yield case("adagrad", "Adagrad", {"lr": 0.05}, {"lr_decay": 0.01, "maximize": True})
    yield case("adagrad_initial", "Adagrad", {"initial_accumulator_value": 0.1, **decay}, {"lr": 0.02})
    yield case("nadam", "NAdam", {}, {"maximize": True, **decay})
    yield case("nadam_decoupled", "NAdam", {"decoupled_weight_decay": True, **decay}, {"momentum_decay": 0.1})
    yield case("radam", "RAdam", {"lr": 0.01}, {"maximize": True, **decay})
    yield case("radam_decoupled", "RAdam", {"decoupled_weight_decay": True, **decay}, {"betas": [0.8, 0.9]})
    # An average of more than half the gradient is made from the other end.
    for name in ("NAdam", "RAdam", "Adamax"):
        yield case(f"{name}_small_beta", name, {"betas": [0.4, 0.95]}, {"betas": [0.0, 0.9]})
    yield case("adamax", "Adamax", {}, {"maximize": True, **decay})
    yield case("adadelta", "Adadelta", {"lr": 0.5}, {"maximize": True, **decay})
    yield case("rmsprop", "RMSprop", {"lr": 0.001}, {"maximize": True, **decay})
    yield case("rmsprop_momentum", "RMSprop", {"lr": 0.001, "momentum": 0.9}, {"centered": True})
    yield case("lion", "Lion", {}, {"maximize": True, "weight_decay": 0.1})
    yield case("lamb", "LAMB", {}, {"maximize": True, "weight_decay": 0.1})
    for dtype in ("float64", "bfloat16", "float16"):
        for name in sorted(FUSED):
            # Python's fused SGD loses momentum of bfloat16 and float16: the test of half momentum has that.
            momentum = {"momentum": 0.9} if name == "SGD" and dtype == "float64" else {}
            yield case(f"{name}.{dtype}", name, momentum, dtype=dtype)
    for name in ("NAdam", "RAdam", "Adamax", "Adadelta", "RMSprop", "Lion", "LAMB"):
        yield case(f"{name}.float64", name, dtype="float64")
    for name in ("SGD", "AdamW", "Adagrad", "NAdam", "LAMB"):
        yield case(f"{name}.transposed", name, {"momentum": 0.9} if name == "SGD" else {}, transposed=True)


CASES = list(cases())


def make_parameters(test):
    parameters = []
    for i, shape in enumerate(SHAPES):
        values = formula(shape, float(i)).to(getattr(torch, test.get("dtype", "float32")))
        if i == 4 and test.get("transposed"):
            values = values.t().contiguous().t()
        parameters.append(torch.nn.Parameter(values))
    return parameters


def make_optimizer(test, parameters):
    kind = {"Lion": Lion, "LAMB": LAMB}.get(test["optimizer"]) or getattr(torch.optim, test["optimizer"])
    fused = {"fused": True} if test["optimizer"] in FUSED else {}
    groups = [{"params": parameters[:3]}, {"params": parameters[3:], **test["second"]}]
    return kind(groups, **test["options"], **fused)


@functools.cache  # All cases have the same.
def gradient_of(i, step, dtype):
    return formula(SHAPES[i], (i + 10.0 * step) * 1.3).to(dtype) * (1 + step % 3)


def set_gradients(parameters, step):
    for i, parameter in enumerate(parameters):
        # In the order of the parameter, as autograd leaves it.
        parameter.grad = (None if i == 3 and step % 7 == 3
                          else torch.empty_like(parameter).copy_(gradient_of(i, step, parameter.dtype)))


def change_rates(optimizer, step):
    for group in optimizer.param_groups:
        if step % 10 == 9:
            group["lr"] = group["lr"] * 0.9


def make_steps(test, optimizer, parameters, first, last):
    for step in range(first, last):
        set_gradients(parameters, step)
        change_rates(optimizer, step)
        optimizer.step()


@functools.cache
def trained_by_python(name):
    """What Python has after 50 steps of the case, and its parameters and optimizer after 100."""
    test, = (test for test in CASES if test["name"] == name)
    parameters = make_parameters(test)
    optimizer = make_optimizer(test, parameters)
    make_steps(test, optimizer, parameters, 0, 50)
    half = copy.deepcopy({"parameters": [parameter.detach() for parameter in parameters],
                          "optimizer": optimizer.state_dict()})
    make_steps(test, optimizer, parameters, 50, 100)
    return half, parameters, optimizer


class Worker(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.folder = directory.name
        self.path = os.path.join(self.folder, "results.pt")

    def run_worker(self, command, tests):
        cases_path = os.path.join(self.folder, "cases.json")
        with open(cases_path, "w", encoding="utf-8") as file:
            json.dump(tests, file)
        subprocess.run([WORKER, command, cases_path, self.path], check=True, timeout=300,
                       env=os.environ | {"OMP_NUM_THREADS": "1"})
        return torch.load(self.path)


class Optimizers(Worker):
    def assert_alike(self, test, actual, expected, name):
        self.assertEqual(actual.dtype, expected.dtype, name)
        if test["optimizer"] in FUSED:
            if not torch.equal(actual, expected):
                self.fail(f"{name}: {actual} is not {expected}")
        else:
            # Elements of Lion, whose step is a sign, may take one step the other way: none does in these cases.
            torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-6, msg=lambda text: f"{name}: {text}")

    def assert_result(self, test, result, parameters, optimizer):
        name = test["name"]
        for i, parameter in enumerate(parameters):
            self.assert_alike(test, result["parameters"][i], parameter.detach(), f"{name}, parameter {i}")
        ours, python = result["optimizer"], optimizer.state_dict()
        self.assertEqual(ours["state"].keys(), python["state"].keys(), name)
        for i, state in python["state"].items():
            self.assertEqual(ours["state"][i].keys(), state.keys(), name)
            for key, value in state.items():
                if key == "mu_product":  # To which Python gives the parameter's dtype when it loads it.
                    value = value.to(ours["state"][i][key].dtype)
                self.assert_alike(test, ours["state"][i][key], value, f"{name}, {key} of parameter {i}")
        for our_group, group in zip(ours["param_groups"], python["param_groups"], strict=True):
            self.assertEqual({key: tuple(value) if key == "betas" else value for key, value in group.items()},
                             our_group, name)

    def test_steps_and_states(self):
        results = self.run_worker("steps", CASES)
        for test in CASES:
            with self.subTest(test["name"]):
                _, parameters, optimizer = trained_by_python(test["name"])
                self.assert_result(test, results[test["name"]], parameters, optimizer)
                # Python continues from our state after 50 steps.
                half = results[test["name"] + ".half"]
                resumed_parameters = make_parameters(test)
                resumed = make_optimizer(test, resumed_parameters)
                with torch.no_grad():
                    for parameter, value in zip(resumed_parameters, half["parameters"], strict=True):
                        parameter.copy_(value)
                resumed.load_state_dict(half["optimizer"])
                make_steps(test, resumed, resumed_parameters, 50, 100)
                self.assert_result(test, results[test["name"]], resumed_parameters, resumed)

    def test_lockstep_continues_from_python(self):
        for test in CASES:
            torch.save(trained_by_python(test["name"])[0], f"{self.path}.{test['name']}")
        results = self.run_worker("resume", CASES)
        for test in CASES:
            with self.subTest(test["name"]):
                _, parameters, optimizer = trained_by_python(test["name"])
                self.assert_result(test, results[test["name"]], parameters, optimizer)

    def test_half_momentum(self):
        """The fused SGD of PyTorch 2.13 is wrong here: the reference computes in float32 and rounds once a step."""
        tests = [{"name": f"{dtype}.{nesterov}", "optimizer": "SGD", "second": {}, "dtype": dtype,
                  "options": {"lr": 0.05, "momentum": 0.9, "nesterov": nesterov}}
                 for dtype in ("bfloat16", "float16") for nesterov in (False, True)]
        results = self.run_worker("steps", tests)
        for test in tests:
            dtype = getattr(torch, test["dtype"])
            parameters = make_parameters(test)
            momenta = [None] * len(parameters)
            lr = 0.05
            for step in range(100):
                set_gradients(parameters, step)
                lr = lr * 0.9 if step % 10 == 9 else lr
                for i, parameter in enumerate(parameters):
                    if parameter.grad is None:
                        continue
                    g = parameter.grad.float()
                    m = g if momenta[i] is None else momenta[i].float() * 0.9 + g
                    change = g + m * 0.9 if test["options"]["nesterov"] else m
                    momenta[i] = m.to(dtype)
                    parameter.data = (parameter.detach().float() + change * -lr).to(dtype)
            result = results[test["name"]]
            for i, parameter in enumerate(parameters):
                self.assertTrue(torch.equal(result["parameters"][i], parameter.detach()), f"{test['name']}, {i}")
                self.assertTrue(torch.equal(result["optimizer"]["state"][i]["momentum_buffer"], momenta[i]))

    def assert_rounded_once(self, test, result, keeps_float32_state):
        """Steps of low-precision parameters are those of float32 ones that are rounded after each step, and so is their
        state unless it is float32."""
        dtype = getattr(torch, test["dtype"])
        options = {key: value for key, value in test["options"].items() if key != "float32_state"}
        parameters = make_parameters(test)
        wide = [torch.nn.Parameter(parameter.detach().float()) for parameter in parameters]
        optimizer = make_optimizer(test | {"options": options}, wide)
        for step in range(100):
            set_gradients(parameters, step)
            for parameter, source in zip(wide, parameters, strict=True):
                parameter.grad = None if source.grad is None else source.grad.float()
            change_rates(optimizer, step)
            optimizer.step()
            for parameter in wide:
                parameter.data = parameter.detach().to(dtype).float()
                for key, value in optimizer.state[parameter].items():
                    if not keeps_float32_state and key not in ("step", "mu_product"):
                        value.copy_(value.to(dtype))
        # What is at the border of two numbers of the dtype may become either.
        unit = torch.finfo(dtype).eps
        rounded = {"rtol": 2 * unit, "atol": unit / 2}
        for i, parameter in enumerate(wide):
            self.assertEqual(result["parameters"][i].dtype, dtype)
            torch.testing.assert_close(result["parameters"][i].float(), parameter.detach(), **rounded,
                                       msg=lambda text: f"{test['name']}, parameter {i}: {text}")
            state = optimizer.state_dict()["state"].get(i, {})
            self.assertEqual(result["optimizer"]["state"].get(i, {}).keys(), state.keys(), test["name"])
            for key, value in state.items():
                actual = result["optimizer"]["state"][i][key]
                is_wide = keeps_float32_state or key in ("step", "mu_product")
                self.assertEqual(actual.dtype, torch.float32 if is_wide else dtype)
                torch.testing.assert_close(actual.float(), value.float(),
                                           **({"rtol": 1e-5, "atol": 1e-6} if is_wide else rounded),
                                           msg=lambda text: f"{test['name']}, {key} of parameter {i}: {text}")

    def test_float32_state_of_low_precision_parameters(self):
        kinds = ("SGD", "Adam", "AdamW", "Adagrad", "NAdam", "RAdam", "Adamax", "Adadelta", "RMSprop", "Lion", "LAMB")
        tests = [{"name": f"{kind}.{dtype}", "optimizer": kind, "second": {}, "dtype": dtype,
                  "options": {"float32_state": True} | ({"momentum": 0.9} if kind == "SGD" else {})}
                 for kind in kinds for dtype in ("bfloat16", "float16")]
        results = self.run_worker("steps", tests)
        for test in tests:
            with self.subTest(test["name"]):
                self.assert_rounded_once(test, results[test["name"]], keeps_float32_state=True)
        # A file keeps it: from half the steps on the bits are the same.
        for test in tests:
            torch.save(results[test["name"] + ".half"], f"{self.path}.{test['name']}")
        resumed = self.run_worker("resume", tests)
        for test in tests:
            with self.subTest(test["name"]):
                whole, other = results[test["name"]], resumed[test["name"]]
                for i, parameter in enumerate(whole["parameters"]):
                    self.assertTrue(torch.equal(parameter, other["parameters"][i]))
                for i, state in whole["optimizer"]["state"].items():
                    for key, value in state.items():
                        self.assertTrue(torch.equal(value, other["optimizer"]["state"][i][key]), key)

    def test_low_precision_by_kernels_of_our_own(self):
        """Python's round after each operation, so that they are no reference."""
        tests = [{"name": f"{kind}.{dtype}", "optimizer": kind, "second": {}, "dtype": dtype,
                  "options": {"lr": 0.5} if kind == "Adadelta" else {}}
                 for kind in ("NAdam", "RAdam", "Adamax", "Adadelta", "RMSprop", "Lion", "LAMB")
                 for dtype in ("bfloat16", "float16")
                 # By squares that vanish in float16 LAMB divides, and any rounding changes its norms.
                 if (kind, dtype) != ("LAMB", "float16")]
        results = self.run_worker("steps", tests)
        for test in tests:
            with self.subTest(test["name"]):
                self.assert_rounded_once(test, results[test["name"]], keeps_float32_state=False)


def scheduler_cases():
    def case(name, kind, options=None, parts=(), steps=1000, optimizer="SGD", **more):
        return {"name": name, "kind": kind, "options": options or {}, "parts": list(parts), "steps": steps,
                "optimizer": optimizer, **more}

    def part(kind, **options):
        return {"kind": kind, "options": options, "parts": []}

    warm_up = part("LinearLR", start_factor=0.01, total_iters=100)
    yield case("step", "StepLR", {"step_size": 30, "gamma": 0.9})
    yield case("multi", "MultiStepLR", {"milestones": [10, 300, 300, 700], "gamma": 0.3})
    yield case("constant", "ConstantLR", {"factor": 0.3, "total_iters": 40})
    yield case("linear", "LinearLR", {"start_factor": 0.01, "end_factor": 0.7, "total_iters": 333})
    yield case("linear_defaults", "LinearLR")
    yield case("exponential", "ExponentialLR", {"gamma": 0.995})
    yield case("polynomial", "PolynomialLR", {"total_iters": 900, "power": 2.5})
    yield case("cosine", "CosineAnnealingLR", {"T_max": 150, "eta_min": 1e-4})
    yield case("cosine_whole", "CosineAnnealingLR", {"T_max": 1000})
    yield case("restarts", "CosineAnnealingWarmRestarts", {"T_0": 70, "eta_min": 1e-3})
    yield case("restarts_longer", "CosineAnnealingWarmRestarts", {"T_0": 10, "T_mult": 3})
    yield case("one_cycle", "OneCycleLR", {"max_lr": [0.5, 0.2], "total_steps": 1000})
    yield case("one_cycle_linear", "OneCycleLR", {"max_lr": 0.5, "total_steps": 1000, "anneal_strategy": "linear",
                                                  "three_phase": True, "pct_start": 0.25}, optimizer="AdamW")
    yield case("one_cycle_rates", "OneCycleLR", {"max_lr": 0.5, "total_steps": 1001, "cycle_momentum": False})
    yield case("sequential", "SequentialLR", {"milestones": [100]}, [warm_up, part("CosineAnnealingLR", T_max=900)])
    yield case("sequential_four", "SequentialLR", {"milestones": [50, 200, 600]},
               [part("ConstantLR", factor=0.1, total_iters=20), part("ExponentialLR", gamma=0.99),
                part("CosineAnnealingWarmRestarts", T_0=20, T_mult=2), part("PolynomialLR", total_iters=400, power=1.5)])
    yield case("sequential_steps", "SequentialLR", {"milestones": [100, 500]},
               [warm_up, part("StepLR", step_size=70), part("LinearLR", start_factor=0.5, total_iters=200)])
    yield case("chained", "ChainedScheduler", {}, [part("ConstantLR", factor=0.1, total_iters=20),
                                                   part("ExponentialLR", gamma=0.998)])
    yield case("chained_sequence", "ChainedScheduler", {}, [
        {"kind": "SequentialLR", "options": {"milestones": [100]},
         "parts": [warm_up, part("ExponentialLR", gamma=0.998)]}, part("StepLR", step_size=300, gamma=0.5)])
    yield case("plateau", "ReduceLROnPlateau", {"factor": 0.5, "patience": 5})
    yield case("plateau_max", "ReduceLROnPlateau", {"mode": "max", "threshold_mode": "abs", "factor": 0.9, "patience": 3,
                                                    "cooldown": 4, "min_lr": [0.01, 0.02]})


SCHEDULER_CASES = [{**test, "name": f"{test['name']}.{kind}", "optimizer": kind}
                   for test in scheduler_cases()
                   for kind in ([test["optimizer"], "torch." + test["optimizer"]])]


def optimizer_for_schedulers(kind):
    parameters = [torch.nn.Parameter(torch.zeros(2)) for _ in range(2)]
    groups = [{"params": parameters[:1]}, {"params": parameters[1:], "lr": 0.03}]
    if kind.endswith("SGD"):
        return torch.optim.SGD(groups, lr=0.1, momentum=0.5)
    return torch.optim.AdamW(groups, lr=0.1)


def make_scheduler(optimizer, test):
    kind = getattr(torch.optim.lr_scheduler, test["kind"])
    options = dict(test["options"])
    parts = [make_scheduler(optimizer, part) for part in test["parts"]]
    if test["kind"] == "SequentialLR":
        return kind(optimizer, parts, **options)
    if test["kind"] == "ChainedScheduler":
        return kind(parts, optimizer)
    if test["kind"] == "ReduceLROnPlateau" and len(options.get("min_lr", [])) == 1:
        options["min_lr"] = options["min_lr"][0]
    return kind(optimizer, **options)


def row(optimizer):
    return [number for group in optimizer.param_groups
            for number in (group["lr"], group["momentum"] if "momentum" in group else group["betas"][0])]


def step_scheduler(scheduler, i):
    if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        scheduler.step(math.sin(i * 0.37) + 5.0 / (i + 1))
    else:
        scheduler.step()


def plain(value):
    """Without what a file does not have: a Counter is a dict there, a tuple a list."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


class Schedulers(Worker):
    def assert_rows(self, name, actual, expected):
        expected = torch.tensor(expected, dtype=torch.float64)
        self.assertEqual(actual.shape, expected.shape, name)
        different = (actual != expected).any(1).nonzero()
        self.assertEqual(different.numel(), 0,
                         f"{name}: from step {different[:1].tolist()} on, {actual[different[:1]]}, "
                         f"{expected[different[:1]]}")

    def test_rates_and_states(self):
        results = self.run_worker("rates", SCHEDULER_CASES)
        for test in SCHEDULER_CASES:
            with self.subTest(test["name"]):
                optimizer = optimizer_for_schedulers(test["optimizer"])
                scheduler = make_scheduler(optimizer, test)
                rows = [row(optimizer)]
                for i in range(test["steps"]):
                    step_scheduler(scheduler, i)
                    rows.append(row(optimizer))
                    if i + 1 == test["steps"] // 2:
                        state = plain(scheduler.state_dict())
                result = results[test["name"]]
                self.assert_rows(test["name"], result["rows"], rows)
                self.assertEqual(plain(result["state"]), state)

                # Python continues from our state.
                optimizer = optimizer_for_schedulers(test["optimizer"])
                scheduler = make_scheduler(optimizer, test)
                scheduler.load_state_dict(result["state"])
                half = test["steps"] // 2
                for group, lr in zip(optimizer.param_groups, (rows[half][0], rows[half][2]), strict=True):
                    group["lr"] = lr
                for i in range(half, test["steps"]):
                    step_scheduler(scheduler, i)
                    self.assertEqual(row(optimizer), rows[i + 1])

    def test_lockstep_continues_from_python(self):
        tests, expected = [], {}
        for test in SCHEDULER_CASES:
            optimizer = optimizer_for_schedulers(test["optimizer"])
            scheduler = make_scheduler(optimizer, test)
            half = test["steps"] // 2
            for i in range(half):
                step_scheduler(scheduler, i)
            torch.save({"scheduler": scheduler.state_dict(), "lrs": [group["lr"] for group in optimizer.param_groups]},
                       f"{self.path}.{test['name']}")
            rows = []
            for i in range(half, test["steps"]):
                step_scheduler(scheduler, i)
                rows.append(row(optimizer))
            expected[test["name"]] = rows
            tests.append(test | {"resume_at": half})
        results = self.run_worker("rates", tests)
        for test in tests:
            with self.subTest(test["name"]):
                self.assert_rows(test["name"], results[test["name"]]["rows"][1:], expected[test["name"]])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], warnings="ignore")  # Of schedulers that step without an optimizer.
