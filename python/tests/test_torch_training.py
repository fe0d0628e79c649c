# SPDX-License-Identifier: Apache-2.0
"""QuantGRU trains, in floats and for integers. ISOBIT_REQUIRE=torch: a failure where torch cannot be imported."""
import contextlib
import copy
import gc
import io
import os
import pathlib
import pickle
import random
import re
import subprocess
import sys
import textwrap
import warnings

import pytest

import isobit

if "torch" in os.environ.get("ISOBIT_REQUIRE", "").split(","):
    import torch
else:
    torch = pytest.importorskip("torch")
from gru_gradients import equal, gradients, hashed, reference  # noqa: E402

import isobit.torch as it  # noqa: E402
from isobit import _training  # noqa: E402

C, H, T, N = 6, 10, 12, 4
README = pathlib.Path(__file__).resolve().parents[1] / "README.md"


def data(gru, steps=T, batch=N, seed=7):
    made = torch.Generator().manual_seed(seed)
    shape = (batch, steps) if gru.batch_first else (steps, batch)
    return torch.randn(*shape, gru.input_size, generator=made)


def quant_gru(*args, seed=3, **kwargs):
    torch.manual_seed(seed)
    return it.QuantGRU(*args, **kwargs)


def quantized(gru, x=None, **options):
    x = data(gru) if x is None else x
    with it.calibrating(gru):
        gru(x)
    gru.quantize(**options)
    return gru


PHASES = pytest.mark.parametrize("phase", ["float", "quantized"])
KINDS = pytest.mark.parametrize("phase", ["float", "quantized", "steps", "ranges"])


@pytest.fixture()
def gru(phase):
    made = quant_gru(C, H, 2, bidirectional=True)
    if phase == "float":
        return made
    return quantized(made, bits="6", learn=None if phase == "quantized" else phase)


# ---- Floats against torch

@pytest.mark.parametrize("seed", range(50))
def test_gradients_are_those_of_float64(seed):
    choose = random.Random(seed)
    hidden = choose.choice([1, 2, 7, 16, 33, 64, 130])
    gru = quant_gru(choose.randint(1, 20), hidden, choose.randint(1, 3 if hidden < 100 else 2), seed=seed,
                    bias=choose.random() < 0.8, batch_first=choose.random() < 0.5, bidirectional=choose.random() < 0.5)
    steps, batch = choose.randint(1, 30), choose.randint(1, 5)
    x = data(gru, steps, batch, seed)
    hx = torch.rand(gru.num_layers * (1 + gru.bidirectional), batch, hidden) - 0.5
    lengths = [choose.randint(0, steps) for _ in range(batch)] if choose.random() < 0.6 else [steps] * batch
    wanted, y = reference(gru, x, hx, lengths)
    found = gradients(gru, x, hx, lengths=lengths)
    assert (gru(x, hx, lengths=lengths)[0] - y).abs().max() < 1e-5
    assert len(found) == len(wanted)
    for got, want in zip(found, wanted):
        assert torch.linalg.norm(got - want) <= 1e-5 * torch.linalg.norm(want)
    if min(lengths) > 0:
        packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, gru.batch_first, enforce_sorted=False)
        of_packed, last = gru(packed, hx)
        assert torch.equal(last, gru(x, hx, lengths=lengths)[1])
        y = torch.nn.utils.rnn.pad_packed_sequence(of_packed, gru.batch_first, total_length=steps)[0]
        assert torch.equal(y, gru(x, hx, lengths=torch.tensor(lengths))[0])


@PHASES
@pytest.mark.parametrize("batch_first", [False, True])
def test_packed_sequences_and_lengths_have_the_same_gradients(phase, batch_first):
    gru = quant_gru(C, H, batch_first=batch_first)
    if phase == "quantized":
        quantized(gru, bits="6")
    x, lengths, found = data(gru), [12, 3, 7, 1], []
    for packed in (True, False):
        x.grad = None
        x.requires_grad_()
        if packed:
            y = gru(torch.nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first, enforce_sorted=False))[0]
            y = torch.nn.utils.rnn.pad_packed_sequence(y, batch_first)[0]
        else:
            y = gru(x, lengths=lengths)[0]
        y.cos().sum().backward()
        found.append([p.grad.clone() for p in gru.parameters()] + [x.grad.clone(), y.detach()])
        gru.zero_grad()
    assert equal(*found)


@PHASES
def test_sequences_alone_and_states(phase):
    """One sequence without a batch, and two pieces with the state between them, give the bytes of the whole."""
    gru = quant_gru(C, H, 2)
    if phase == "quantized":
        quantized(gru, bits="6,h=9")
    x = data(gru)
    y, last = gru(x)
    alone, alone_last = gru(x[:, 2])
    assert torch.equal(alone, y[:, 2]) and torch.equal(alone_last, last[:, 2])
    assert gru(x[:, :0])[0].shape == (T, 0, H)
    before, state = gru(x[:5])
    after, end = gru(x[5:], state)
    assert torch.equal(torch.cat([before, after]), y) and torch.equal(end, last)
    after.sum().backward()
    assert gru.weight_hh_l0.grad.abs().sum() > 0


# ---- Zoneout

@PHASES
def test_zoneout_masks(phase):
    gru = quant_gru(C, H, 2, batch_first=True, bidirectional=True)
    if phase == "quantized":
        quantized(gru, bits="8")
    x = data(gru)
    ones = torch.ones(N, T, 2 * H, dtype=torch.bool)
    assert equal(gradients(gru, x), gradients(gru, x, zoneout=[ones, None]))
    mask = torch.rand(N, T, 2 * H) < 0.8
    found = gradients(gru, x, zoneout=[mask, mask])
    assert equal(found, gradients(gru, x, zoneout=torch.stack([mask, mask]).to(torch.uint8)))
    assert not equal(found, gradients(gru, x))
    y, last = gru(x, zoneout=[None, torch.zeros_like(mask)])  # every state stays the first one
    assert not y.any() and not last[2:].any() and last[:2].any()
    for masks, error, message in [
        ([mask], isobit.InvalidArgumentError, "zoneout has 1 masks, must have 2, one a layer"),
        ([mask, mask.transpose(0, 1)], isobit.InvalidArgumentError,
         r"zoneout\[1\] has shape \[12, 4, 20\], must be \[4, 12, 20\], as y"),
        ([mask, mask.float()], TypeError, r"zoneout\[1\] is float32, must be bool or uint8"),
    ]:
        with pytest.raises(error, match=message):
            gru(x, zoneout=masks)


# ---- What is trained is what is exported

@pytest.mark.parametrize("options", [
    {"bits": "4"}, {"bits": "8", "scale": "real", "method": "minmax"}, {"bits": "4", "learn": "steps"},
    {"bits": "4", "learn": "steps", "scale": "real"}, {"bits": "4", "learn": "ranges"}], ids=str)
def test_the_forward_of_training_is_the_model_that_is_saved(options, tmp_path):
    torch.manual_seed(5)
    gru, head = it.QuantGRU(C, H, bidirectional=True), torch.nn.Linear(2 * H, 3)
    optimizer = torch.optim.Adam([*gru.parameters(), *head.parameters()], lr=0.01)
    x = data(gru, batch=16)
    wanted = torch.stack([x[..., :3].cumsum(0).clamp(-1, 1), x[..., 3:]]).mean(0)
    losses = []

    def step():
        optimizer.zero_grad()
        loss = (head(gru(x)[0]) - wanted).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    def compare():
        exported = gru if gru.phase == "frozen" else copy.deepcopy(gru)
        if exported is not gru:
            exported.freeze()
        exported.to_integer().save(tmp_path / "gru.safetensors")
        y, last = gru(x)
        loaded = isobit.load(tmp_path / "gru.safetensors")
        state = loaded.initial_state(16)
        assert torch.equal(loaded(x, state, whole_sequence=True), y.detach())
        assert torch.equal(state.values(x), last.detach())
        return y.detach()

    for _ in range(100):
        step()
    assert losses[-1] < losses[0]
    quantized(gru, x, **options)
    if "learn" in options:
        optimizer.add_param_group({"params": gru.grid_parameters(), "lr": 0.05})
        learned = gru.grid_parameters()[0].detach().clone()
    start = len(losses)
    for i in range(150):
        if i % 50 == 0:
            compare()
        step()
        if options.get("learn") == "ranges" and i % 20 == 10:
            gru.update_grids()
    if "learn" in options:
        assert not torch.equal(learned.round(), gru.grid_parameters()[0].round())
    assert sum(losses[-10:]) / 10 < losses[start]
    y = compare()  # after the last step
    gru.freeze()
    assert torch.equal(compare(), y) and gru.phase == "frozen"


def grids(gru):
    """The first and the last grid of what is deployed."""
    model = copy.deepcopy(gru).freeze()
    return model.input_grid, model.output_grid


@pytest.mark.parametrize("scale", ["pow2", "real"])
def test_steps(scale):
    gru = quantized(quant_gru(C, H, 2, bidirectional=True), bits="7,h=9", learn="steps", scale=scale)
    names = gru.grid_names()
    assert names[:7] == ["l0.x", "l0.h", "l0.ih", "l0.hh", "l0.u_in", "l0.r_in", "l0.n_in"]
    assert names[7] == "l0.reverse.ih" and names[12:14] == ["l1.h", "l1.ih"] and len(names) == 23
    steps, = gru.grid_parameters()
    assert steps.shape == (23,) and set(gru.parameters()) > {steps}
    assert [2 ** steps[names.index(name)].item() for name in ("l0.x", "l1.h")] == pytest.approx(
        [grid["scale"] for grid in grids(gru)])
    x, before, first = data(gru), gru(data(gru))[0].detach(), grids(gru)
    with torch.no_grad():
        steps[names.index("l0.x")] += 0.4 if scale == "pow2" else 0
    assert torch.equal(gru(x)[0], before)  # a step is rounded to a power of two
    with torch.no_grad():
        steps[names.index("l0.x")] += 0.6 if scale == "pow2" else 1
        steps[names.index("l1.h")] -= 1
    assert [grid["scale"] for grid in grids(gru)] == pytest.approx([2 * first[0]["scale"], first[1]["scale"] / 2])
    assert [grid["zero_point"] for grid in grids(gru)] == [grid["zero_point"] for grid in first]
    assert torch.equal(copy.deepcopy(gru).freeze()(x), gru(x)[0].detach())
    gru(x)[0].sum().backward()
    assert torch.isfinite(steps.grad).all() and steps.grad.count_nonzero() > 15
    steps.grad, weights = None, [p.grad.clone() for p in gru.parameters() if p is not steps]
    gru.zero_grad()
    steps.requires_grad_(False)  # they stay as they are
    gru(x)[0].sum().backward()
    assert steps.grad is None and equal(weights, [p.grad for p in gru.parameters() if p is not steps])
    for value in (float("nan"), 40.0 if scale == "pow2" else 1e4):
        with torch.no_grad():
            steps[3] = value
        with pytest.raises(isobit.InvalidArgumentError, match="l0.hh|layer 0.* hh"):
            gru(x)


def test_a_step_learns_its_best():
    """From a step that is four times too wide, the gradient finds back to one whose results are near floats."""
    gru = quant_gru(C, H)
    x = data(gru, 30, 16)
    with torch.no_grad():
        wanted = gru(x)[0]
    quantized(gru, x, bits="8,h=5", learn="steps")
    steps, at = gru.log2_steps, gru.grid_names().index("l0.h")
    good = steps[at].item()
    optimizer = torch.optim.Adam([steps], lr=0.02)
    with torch.no_grad():
        steps[at] += 2
    losses = []
    for _ in range(200):
        optimizer.zero_grad()
        loss = (gru(x)[0] - wanted).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 4 and abs(steps[at].item() - good) < 1


def test_ranges():
    gru = quantized(quant_gru(C, H, 2), bits="6", learn="ranges")
    x, ranges, names = data(gru), gru.ranges, gru.grid_names()
    assert ranges.shape == (len(names), 2) and gru.grid_parameters() == [ranges]
    y, model = gru(x)[0].detach(), pickle.dumps(copy.deepcopy(gru).freeze())
    gru.update_grids()  # of the same ranges: the same grids
    assert torch.equal(gru(x)[0], y) and pickle.dumps(copy.deepcopy(gru).freeze()) == model
    gru(4 * x)[0].sum().backward()
    of_x = ranges.grad[names.index("l0.x")]
    assert of_x.count_nonzero() == 2  # numbers of x clip on both sides
    with torch.no_grad():
        ranges[names.index("l0.x")] *= 4
    assert torch.equal(gru(x)[0], y)  # until they are taken
    first = grids(gru)
    gru.update_grids()
    assert grids(gru)[0]["scale"] == 4 * first[0]["scale"] and grids(gru)[1] == first[1]
    assert torch.equal(copy.deepcopy(gru).freeze()(x), gru(x)[0].detach())
    before = grids(gru)
    with torch.no_grad():
        ranges[names.index("l1.h"), 1] = float("nan")
    with pytest.raises(isobit.InvalidArgumentError, match="layer 1.* h"):
        gru.update_grids()
    assert grids(gru) == before
    with pytest.raises(isobit.FailedPreconditionError, match=r"update_grids\(\) is for quantize\(learn='ranges'\)"):
        quantized(quant_gru(C, H)).update_grids()
    with pytest.raises(isobit.InvalidArgumentError, match="learn is 'range', must be None, 'steps' or 'ranges'"):
        quantized(quant_gru(C, H), learn="range")


@pytest.mark.parametrize("options", [
    {"bits": "4"}, {"bits": "8", "scale": "real"}, {"bits": "6", "learn": "steps"}, {"bits": "6", "learn": "ranges"}],
    ids=str)
@pytest.mark.filterwarnings("ignore::isobit.torch.QuantizationWarning")
def test_rows_that_keep_their_grids(options):
    gru = quantized(quant_gru(C, H, 2, bidirectional=True), **options)
    x = data(gru)
    if "learn" in options:
        with torch.no_grad():
            (gru.ranges if gru.log2_steps is None else gru.log2_steps)[gru.grid_names().index("l1.h")] += 1
    weights = copy.deepcopy(gru.state_dict())
    y, found = gru(x)[0].detach(), gradients(gru, x)
    model = pickle.dumps(copy.deepcopy(gru).freeze())
    gru.hold_weight_grids()
    assert gru.phase == "quantized" and torch.equal(gru(x)[0], y) and equal(gradients(gru, x), found)
    assert pickle.dumps(copy.deepcopy(gru).freeze()) == model

    def scaled(of, factor):
        with torch.no_grad():
            for name, weight in of.named_parameters():
                if "weight" in name or "bias" in name:
                    weight.copy_(factor * weights[name])

    free = quantized(quant_gru(C, H, 2, bidirectional=True), **options)
    for factor in (3, 0.6):
        scaled(gru, factor), scaled(free, factor)
        held = gru(x)[0].detach()
        assert not torch.equal(held, free(x)[0])
        copies = [copy.deepcopy(gru), pickle.loads(pickle.dumps(gru))]
        for copied in copies:
            assert torch.equal(copied(x)[0], held) and equal(gradients(copied, x), gradients(gru, x))
        gru.hold_weight_grids()  # changes nothing
        assert torch.equal(gru(x)[0], held)
        assert torch.equal(copies[0].freeze()(x), held)
    scaled(gru, 3)
    assert all(gradient.any() for gradient in gradients(gru, x))  # weights clip, their gradients go on
    if options.get("learn") == "ranges":
        gru.update_grids()
        held = gru(x)[0].detach()
        scaled(free, 3), free.ranges.data.copy_(gru.ranges.data), free.update_grids()
        assert not torch.equal(held, free(x)[0])
        assert torch.equal(copy.deepcopy(gru).freeze()(x), held)
    scaled(gru, 1)
    if options.get("learn") != "ranges":
        assert torch.equal(gru(x)[0], y)
    optimizer = torch.optim.Adam(gru.parameters(), lr=0.01)
    for _ in range(10):
        optimizer.zero_grad()
        gru(x)[0].square().sum().backward()
        optimizer.step()
    y = gru(x)[0].detach()
    assert torch.equal(gru.freeze()(x), y)
    for other, phase in ((gru, "frozen"), (quant_gru(C, H), "float")):
        with pytest.raises(isobit.FailedPreconditionError,
                           match=rf"hold_weight_grids\(\) in phase '{phase}', must be in 'quantized': call quantize"):
            other.hold_weight_grids()
    with it.calibrating(gru):
        gru(x)
        with pytest.raises(isobit.FailedPreconditionError, match="in phase 'calibrating', must be in 'quantized'"):
            gru.hold_weight_grids()


def test_without_a_step_it_is_the_model_of_calibration():
    gru = quant_gru(C, H, 2)
    with it.calibrating(gru, "percentile:99.9"):
        gru(data(gru))
    other = quant_gru(C, H, 2)
    other._calibrator = gru._calibrator
    gru.quantize(bits="5,h=9", method=None)
    assert pickle.dumps(gru.freeze()) == pickle.dumps(other.freeze(bits="5,h=9"))


def test_lines_of_the_page_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    block, = re.findall(r"```py\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    torch.manual_seed(4)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.gru, self.head = torch.nn.GRU(C, H), torch.nn.Linear(H, 3)

        def forward(self, x):
            return self.head(self.gru(x)[1][0])

    batches = [torch.randn(T, N, C) for _ in range(5)]
    names = {"model": Model(), "loader": [(x, (x.sum((0, 2)) > 0).long()) for x in batches]}
    exec(compile(block, README, "exec"), names)  # pylint: disable=exec-used
    gru = names["model"].gru
    loaded = isobit.load(tmp_path / "gru.safetensors")
    assert torch.equal(loaded(batches[0]), gru(batches[0])[0])
    assert (tmp_path / "gru.safetensors").read_bytes() == (tmp_path / "checkpoint.safetensors").read_bytes()


# ---- The same bytes

@KINDS
def test_gradients_have_the_same_bytes_on_any_number_of_threads(phase, gru):
    x, mask = data(gru, 20, 9), torch.rand(2, 20, 9, 2 * H) < 0.9
    lengths = [20, 3, 17, 0, 20, 9, 11, 2, 20]
    before, found = torch.get_num_threads(), set()
    try:
        for i in range(20):
            torch.set_num_threads((1, 2, 7)[i % 3])
            found.add(hashed(gradients(gru, x, torch.full((4, 9, H), 0.25), lengths=lengths, zoneout=mask)))
    finally:
        torch.set_num_threads(before)
    assert len(found) == 1


# ---- The contract of autograd

@KINDS
def test_graphs_that_are_kept(phase, gru):
    y, _ = gru(data(gru))
    twice = [torch.autograd.grad(y.sin().sum(), list(gru.parameters()), retain_graph=True) for _ in range(2)]
    assert equal(*twice)
    loss = y.sin().sum()
    loss.backward(retain_graph=True)
    once = [p.grad.clone() for p in gru.parameters()]
    loss.backward()
    assert equal([2 * g for g in once], [p.grad for p in gru.parameters()])
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


@KINDS
def test_saved_tensors_must_not_change(phase, gru):
    x = data(gru)
    versions = [p._version for p in gru.parameters()]
    y = gru(x)[0]
    y.sum().backward(retain_graph=True)
    assert [p._version for p in gru.parameters()] == versions and y._version == 0 and x._version == 0
    with torch.no_grad():
        gru.weight_hh_l0.mul_(0.5)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@KINDS
def test_double_backward_is_refused(phase, gru):
    x = data(gru).requires_grad_()
    first = torch.autograd.grad(gru(x)[0].sin().sum(), x, create_graph=True)[0]
    with pytest.raises(isobit.NotSupportedError, match="double backward: QuantGRU has no gradient of its gradients"):
        first.square().sum().backward()


@KINDS
def test_checkpoints_and_hooks_on_saved_tensors(phase, gru):
    x = data(gru)
    plain = gradients(gru, x)

    def kept(reentrant):
        return lambda v, hx=None: torch.utils.checkpoint.checkpoint(gru, v, use_reentrant=reentrant)

    for call in (kept(True), kept(False)):
        call.parameters, call.zero_grad = gru.parameters, gru.zero_grad
        assert equal(gradients(call, x), plain)
    packed = []

    def pack(tensor):
        packed.append(tensor)
        return pickle.dumps(tensor.detach())

    with torch.autograd.graph.saved_tensors_hooks(pack, pickle.loads):
        assert equal(gradients(gru, x), plain)
    assert packed


@KINDS
def test_operators_pass_opcheck(phase, gru):
    x, weights = data(gru).requires_grad_(), gru._flat()
    h0, lengths = torch.zeros(4, N, H, requires_grad=True), torch.tensor([12, 0, 5, 12])
    mask = torch.ones(2, T, N, 2 * H, dtype=torch.uint8)
    for first, counts, masks in ((None, None, None), (h0, lengths, mask)):
        arguments = x, first, weights, counts, masks
        if phase == "float":
            torch.library.opcheck(_training.float_forward, (*arguments, 2, True))
            y, last, saved = _training.float_forward(*arguments, 2, True)
            torch.library.opcheck(_training.float_backward,
                                  (y.detach(), last.detach(), x.detach(), first if first is None else first.detach(),
                                   [w.detach() for w in weights], counts, masks, y.detach(), saved, 2, True, True))
        else:
            learned = gru._learned()
            rest = gru._grids.key, 2, learned is not None, True, True
            torch.library.opcheck(_training.qat_forward, (*arguments, learned, *rest))
            y, last, saved, of_grids = _training.qat_forward(*arguments, learned, *rest)
            torch.library.opcheck(_training.qat_backward, (y.detach(), last.detach(), [w.detach() for w in weights],
                                                           None, None, saved, None if learned is None else of_grids,
                                                           gru._grids.key, phase == "steps", 2, True, True))


@KINDS
def test_compiled_without_breaks(phase, gru):
    x = data(gru)
    torch._dynamo.reset()
    compiled = torch.compile(gru, fullgraph=True, backend="aot_eager")
    plain = gru(x)
    assert equal([t.detach() for t in compiled(x)], [t.detach() for t in plain])
    compiled(x)[0].sin().sum().backward()
    found = [p.grad.clone() for p in gru.parameters()]
    gru.zero_grad()
    gru(x)[0].sin().sum().backward()
    assert equal(found, [p.grad for p in gru.parameters()])
    with torch.no_grad():
        assert torch.equal(compiled(x)[0], plain[0])
    for _ in range(2):  # with other grids and sizes
        if phase != "float":
            quantized(gru, x, bits="5", learn=None if phase == "quantized" else phase)
        for steps, batch in ((5, 2), (7, 3)):
            piece = x[:steps, :batch]
            assert torch.equal(compiled(piece)[0], gru(piece)[0])
            found = torch.autograd.grad(compiled(piece)[0].sum(), list(gru.parameters()), allow_unused=True)
            assert equal(found, torch.autograd.grad(gru(piece)[0].sum(), list(gru.parameters()), allow_unused=True))


def test_compiled_inference():
    gru = quantized(quant_gru(C, H, 2, bidirectional=True, batch_first=True), bits="8")
    gru.freeze()
    x, h0 = data(gru), torch.rand(4, N, H)
    torch._dynamo.reset()
    compiled = torch.compile(gru, fullgraph=True, backend="aot_eager")
    for arguments, lengths in (((x,), None), ((x, h0), [3, 12, 0, 9]), ((x[0],), None), ((x[0], h0[:, 0]), None)):
        assert equal(compiled(*arguments, lengths=lengths), gru(*arguments, lengths=lengths))
    torch.library.opcheck(_training.run, (x, h0, torch.tensor([3, 12, 0, 9]), gru._model.key, True))
    with pytest.raises(Exception, match="x requires gradients, which integers do not have"):
        compiled(x.requires_grad_())


@KINDS
def test_copies(phase, gru):
    x = data(gru)
    wanted = gradients(gru, x)
    file = io.BytesIO()
    torch.save(gru, file)
    file.seek(0)
    copies = [copy.deepcopy(gru), pickle.loads(pickle.dumps(gru)), torch.load(file, weights_only=False)]
    for copied in copies:
        assert copied.phase == ("float" if phase == "float" else "quantized") and equal(gradients(copied, x), wanted)
        with torch.no_grad():
            copied.weight_ih_l0.zero_()
    assert equal(gradients(gru, x), wanted)
    copies[0].load_state_dict(gru.state_dict())  # grids stay
    assert copies[0].phase == copies[1].phase and equal(gradients(copies[0], x), wanted)


def test_backward_outlives_the_module():
    gru = quantized(quant_gru(C, H))
    wanted = gradients(gru, data(gru))
    x = data(gru).requires_grad_()
    y, last = gru(x)
    weights = list(gru.parameters())
    del gru
    gc.collect()
    ((y * torch.arange(y.numel()).reshape(y.shape).sin()).sum() + last.sin().sum()).backward()
    assert equal([w.grad for w in weights] + [x.grad], wanted)


def test_one_module_many_times_in_a_graph():
    """Gradients add up over the calls, and the state that is carried brings its own."""
    gru = quant_gru(C, H)
    x = data(gru)
    y, last = gru(x[:5])
    z, _ = gru(x[5:], last)
    torch.cat([y, z]).sin().sum().backward()
    found = [p.grad.clone() for p in gru.parameters()]
    gru.zero_grad()
    gru(x)[0].sin().sum().backward()
    for got, wanted in zip(found, (p.grad for p in gru.parameters())):
        assert torch.linalg.norm(got - wanted) <= 1e-5 * torch.linalg.norm(wanted)


@PHASES
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast(phase, dtype, gru):
    x = data(gru)
    half = x.to(dtype)
    with torch.autocast("cpu", dtype=dtype):
        y, last = gru(half, torch.zeros(4, N, H, dtype=dtype))
        assert y.dtype == last.dtype == dtype and torch.equal(y, gru(half.float())[0].to(dtype))
        assert gru(x)[0].dtype == torch.float32
    y.float().sum().backward()
    assert all(p.grad.dtype == torch.float32 for p in gru.parameters())
    if phase == "quantized":
        frozen = copy.deepcopy(gru)
        frozen.freeze()
        with torch.autocast("cpu", dtype=dtype):
            assert torch.equal(frozen(half, torch.zeros(4, N, H, dtype=dtype))[0], y)
    with pytest.raises(TypeError, match=r"input is b?float16, must be float32 \(float16 and bfloat16 are taken under"):
        gru(half)


# ---- Several processes

WORKER = """
    import sys
    import torch
    import torch.distributed as dist
    import isobit.torch as it
    rank, folder = int(sys.argv[1]), sys.argv[2]
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    gru = torch.load(f"{folder}/gru.pt", weights_only=False)
    x = torch.load(f"{folder}/x.pt")
    model = torch.nn.parallel.DistributedDataParallel(gru)
    for _ in range(2):
        gru.zero_grad()
        model(x[:, 2 * rank:2 * rank + 2])[0].sin().mean().backward()
    torch.save([p.grad for p in gru.parameters()], f"{folder}/gradients{rank}.pt")
    dist.barrier()  # a process that leaves early makes gloo abort the other
    dist.destroy_process_group()
"""


@KINDS
def test_distributed_data_parallel(phase, gru, tmp_path):
    x = data(gru)
    torch.save(gru, tmp_path / "gru.pt")
    torch.save(x, tmp_path / "x.pt")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    processes = [subprocess.Popen([sys.executable, "-c", textwrap.dedent(WORKER), str(rank), str(tmp_path)],
                                  env=environment) for rank in range(2)]
    assert [process.wait(timeout=120) for process in processes] == [0, 0]
    found = [torch.load(tmp_path / f"gradients{rank}.pt") for rank in range(2)]
    assert equal(*found)
    parts = []
    for rank in range(2):
        gru.zero_grad()
        gru(x[:, 2 * rank:2 * rank + 2])[0].sin().mean().backward()
        parts.append([p.grad.clone() for p in gru.parameters()])
    for got, one, two in zip(found[0], *parts):
        assert torch.allclose(got, (one + two) / 2, rtol=1e-6, atol=1e-9)


def test_a_process_that_was_forked(gru=None):
    """Threads are not inherited: a child makes its own."""
    gru = quant_gru(C, H)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        wanted = hashed(gradients(gru, data(gru)))
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                with torch.no_grad():
                    os.write(writing, hashed([gru(data(gru))[0]]).encode())
            finally:
                os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            assert pipe.read() == hashed([gru(data(gru))[0].detach()])
        os.waitpid(child, 0)
        assert hashed(gradients(gru, data(gru))) == wanted
    finally:
        torch.set_num_threads(before)


# ---- Hand-over

def test_hand_over():
    encoder, decoder = quant_gru(C, H, 2, seed=1), quant_gru(C, H, 2, seed=2)
    x = data(encoder)
    h = (2 * torch.rand(4 // 2, N, H) - 1).requires_grad_()
    assert it.hand_over(h, encoder, decoder) is h
    quantized(encoder, x, bits="8,h=10")
    with pytest.raises(isobit.FailedPreconditionError, match="from_gru is in phase 'quantized', to_gru in 'float'"):
        it.hand_over(h, encoder, decoder)
    quantized(decoder, x / 8, bits="8,h=5")  # a narrower range: some states clamp
    handed = it.hand_over(h, encoder, decoder)
    given = torch.randn(handed.shape)
    found = torch.autograd.grad(handed, h, given)[0]
    deployed = [copy.deepcopy(gru).freeze() for gru in (encoder, decoder)]
    state = deployed[0].initial_state(N, h.detach())
    wanted = deployed[1].state_from(deployed[0], state).values(x)
    assert torch.equal(handed.detach(), wanted)
    stopped = found == 0
    assert 0 < stopped.sum() < h.numel() and torch.equal(found[~stopped], given[~stopped])
    assert (handed.detach() - h.detach()).abs()[stopped].min() > 0
    assert torch.equal(it.hand_over(h[:, 1], encoder, decoder), handed[:, 1])
    torch.library.opcheck(_training.hand_over, (h, [], [], None, None, encoder._grids.key, decoder._grids.key))
    _, last = encoder(x)
    decoder(x, it.hand_over(last, encoder, decoder))[0].sum().backward()
    assert encoder.weight_ih_l0.grad.abs().sum() > 0
    with pytest.raises(isobit.InvalidArgumentError, match="nan|NaN"):
        it.hand_over(torch.full((2, N, H), float("nan")), encoder, decoder)
    steps = [quantized(copy.deepcopy(gru), x, bits="8,h=6", learn="steps") for gru in (encoder, decoder)]
    with torch.no_grad():
        for gru in steps:
            gru.log2_steps[gru.grid_names().index("l0.h")] -= 2
    deployed = [copy.deepcopy(gru).freeze() for gru in steps]
    state = deployed[1].state_from(deployed[0], deployed[0].initial_state(N, h.detach()))
    handed = it.hand_over(h, *steps)
    assert torch.equal(handed.detach(), state.values(x))
    handed.sum().backward()
    torch.library.opcheck(_training.hand_over, (h, steps[0]._flat(), steps[1]._flat(), steps[0].log2_steps,
                                                steps[1].log2_steps, steps[0]._grids.key, steps[1]._grids.key))
    encoder.freeze(), decoder.freeze()
    assert torch.equal(it.hand_over(h.detach(), encoder, decoder), wanted)
    with pytest.raises(isobit.InvalidArgumentError, match="nan|NaN"):
        it.hand_over(torch.full((2, N, H), float("nan")), encoder, decoder)


# ---- Warnings

def test_warnings_of_clipping():
    gru = quant_gru(C, H)
    quantized(gru, data(gru) / 20, bits="8", method="minmax")
    with pytest.warns(it.QuantizationWarning, match=r"more than \d+ % of x clip, where gradients stop"):
        gru(data(gru))
    with warnings.catch_warnings():
        warnings.simplefilter("error", it.QuantizationWarning)
        gru(data(gru) / 20)[0].sum().backward()
        with torch.no_grad():
            gru(data(gru))


def test_warnings_of_explosion():
    gru = quant_gru(C, H)
    with torch.no_grad():
        gru.weight_hh_l0.normal_(0, 8)
        gru.weight_ih_l0.mul_(0.01)
        gru.bias_ih_l0[H:2 * H] = -1
    x = data(gru, 60)
    quantized(gru, x, bits="16,gate_in=14,gate_out=12")
    with pytest.warns(it.QuantizationWarning, match="the gradient of a weight is more than 10000 times as long"):
        gru(x)[1].sum().backward()


# ---- Refusals

@PHASES
def test_bad_input(phase, gru):
    x = data(gru)
    nan = x.clone()
    nan[3, 1, 2] = float("nan")
    dropping = quant_gru(C, H, 2, dropout=0.2)
    refusals = [
        (lambda: gru(x, lengths=[12, 3, 13, 1]), isobit.InvalidArgumentError, r"lengths\[2\] is 13, must be 0..12"),
        (lambda: gru(x, lengths=[1, 2]), isobit.InvalidArgumentError, r"lengths has shape \[2\], must be \[4\]"),
        (lambda: gru(x[..., :5]), isobit.InvalidArgumentError, r"input has shape \[12, 4, 5\], must be \[T, N, C\]"),
        (lambda: gru(x, torch.zeros(3, N, H)), isobit.InvalidArgumentError,
         r"hx has shape \[3, 4, 10\], must be \[4, 4, 10\]"),
        (lambda: gru(x.double()), TypeError, "input is float64, must be float32"),
        (lambda: gru(x.to("meta")), isobit.NotSupportedError, "input is on meta, must be on the CPU"),
        (lambda: copy.deepcopy(gru).double()(x), TypeError, "weight_ih_l0 is float64, must be float32"),
        (lambda: dropping(data(dropping)), isobit.NotSupportedError, "dropout is 0.2 between layers, must be 0"),
        (lambda: gru(torch.nn.utils.rnn.pack_padded_sequence(x, [12] * 4), lengths=[12] * 4),
         isobit.InvalidArgumentError, "lengths are given with a PackedSequence"),
        (gru.to_integer, isobit.FailedPreconditionError,
         "there is no integer model yet" if phase == "float" else "grids are not frozen"),
    ]
    if phase == "quantized":
        refusals += [
            (lambda: gru(nan), isobit.InvalidArgumentError, r"training: x\[\d+\] is NaN"),
            (lambda: gru.freeze(bits="8"), isobit.InvalidArgumentError, "is given bits; must be without options"),
            (lambda: gru.quantize(), isobit.FailedPreconditionError, r"quantize\(\) before calibrate\(\)"),
        ]
    for call, error, message in refusals:
        with pytest.raises(error, match=message):
            call()
    assert dropping.eval()(data(dropping))[0].shape == (T, N, H)


def test_requires_grad_is_refused_where_there_are_no_gradients():
    gru = quantized(quant_gru(C, H))
    gru.freeze()
    for call in (gru, gru.to_integer()):
        with pytest.raises(TypeError, match="x requires gradients, which integers do not have"):
            call(data(gru).requires_grad_())


def test_overflow_is_refused_by_name():
    gru = quant_gru(C, H)
    with it.calibrating(gru):
        gru(data(gru))
    with pytest.raises((isobit.OverflowError, isobit.InvalidArgumentError)):
        gru.quantize(bits="32")
    assert gru.phase == "calibrating"
    gru.quantize(bits="8")
    gru = quant_gru(C, H)
    with it.calibrating(gru, "minmax"):
        gru(data(gru))
    with pytest.raises(isobit.InvalidArgumentError, match="method is 'ema:0.5', must be that of calibrating, 'minmax'"):
        gru.quantize(method="ema:0.5")


@PHASES
def test_a_loss_that_is_not_finite(phase, gru):
    x = data(gru)
    before = copy.deepcopy(gru.state_dict())
    optimizer = torch.optim.Adam(gru.parameters(), lr=0.1)
    for poison, what in ((float("nan"), "nan"), (float("inf"), "inf")):
        y, last = gru(x)
        with pytest.raises(isobit.InvalidArgumentError, match=rf"the gradient of y\[0, 0, 0\] is {what}, must be"):
            (y.sum() * poison).backward()
        assert all(p.grad is None for p in gru.parameters())
        with pytest.raises(isobit.InvalidArgumentError, match=rf"the gradient of h_n\[0, 0, 0\] is {what}"):
            (last.sum() * poison).backward()
    optimizer.step()
    assert all(torch.equal(before[name], value) for name, value in gru.state_dict().items())
    gru.check_finite = False
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**120)
    scaler.scale(gru(x)[0].sum() * 1e30).backward()
    scaler.step(optimizer)
    scaler.update()
    assert all(torch.equal(before[name], value) for name, value in gru.state_dict().items())
    assert scaler.get_scale() == 2.0**119
    with torch.no_grad():
        gru.weight_ih_l0[0, 0] = float("nan")
    if phase == "quantized":
        with pytest.raises(isobit.InvalidArgumentError, match=r"W\[.*NaN|nan"):
            gru(x)


# ---- On a CUDA device, without one: test_torch_training_cuda.py has the rest

class OnDevice:
    """The CPU in the place of libisobit_cuda.so: rows of gates u, r, n go in and come out."""

    def __init__(self, monkeypatch):
        self.said, self.capturing = [], False
        for name in ("forward", "backward"):
            monkeypatch.setattr(_training._isobit, f"gru_device_{name}", getattr(self, f"float_{name}"))
        for name in ("forward", "backward", "check"):
            monkeypatch.setattr(_training._isobit, f"gru_qat_device_{name}", getattr(self, f"qat_{name}"))
        monkeypatch.setattr(_training, "_saved_size", lambda *_: 1 << 20)  # that of the device
        monkeypatch.setattr(_training, "_on_its_device", lambda *_: contextlib.nullcontext())
        monkeypatch.setattr(_training._arrays, "on_device", lambda x, numbers: torch.tensor(numbers))
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: self.capturing)

    def float_forward(self, x, first, weights, *arguments):
        _training._isobit.gru_float_forward(x, first, _training._swapped(weights), *arguments, None)
        self.said.append("forward")

    def float_backward(self, *arguments):
        *arguments, gradients = arguments
        arguments[2] = _training._swapped(arguments[2])
        self.swap(lambda made: _training._isobit.gru_float_backward(*arguments, made, None), gradients)

    def swap(self, backward, gradients):
        made = [torch.empty_like(gradient) for gradient in gradients]
        backward(made)
        for gradient, of in zip(gradients, _training._swapped(made)):
            gradient.copy_(of)
        self.said.append("backward")

    def qat_forward(self, core, x, first, weights, lengths, mask, y, last, saved):
        assert len(saved) == 1 << 20
        size = SAVED_SIZE(x, first, weights, lengths, mask, 2, False)
        self.shares, _ = core.forward(x, first, _training._swapped(weights), None, False, lengths, mask, y, last,
                                      saved[:size], None)
        self.size = size
        self.said.append("forward")

    def qat_backward(self, core, dy, dlast, lengths, mask, saved, dx, dfirst, gradients):
        assert saved.data_ptr() % 64 == 0 and len(saved) == 1 << 20 and (lengths is None) == (mask is None)
        self.swap(lambda made: _training._isobit.gru_qat_backward(saved[:self.size], dy, dlast, dx, dfirst, made, None,
                                                                 None, 2, None), gradients)

    def qat_check(self, core, steps, batch, saved):
        assert (steps, batch, len(saved)) == (T, N, 1 << 20)
        self.said.append("check")
        return self.shares


SAVED_SIZE = _training._saved_size


@PHASES
def test_what_a_device_gets(phase, gru, monkeypatch):
    """Results are those of the CPU, in whose place the device comes; and what is refused."""
    x, h0, lengths = data(gru), torch.rand(4, N, H), torch.tensor([12, 0, 5, 12])
    mask = (torch.rand(2, T, N, 2 * H) < 0.8).to(torch.uint8)
    weights = gru._flat()

    def forwards(given, on_device):
        if phase == "float":
            call = _training._float_forward_on_device if on_device else _training._float_forward
            return call(*given, 2, True)
        call = _training._qat_forward_on_device if on_device else _training._qat_forward
        return call(*given, None, gru._grids.key, 2, False, True, True)

    def backwards(dy, dlast, given, results, wants_dx, on_device):
        y, _, saved, *_ = results
        if phase == "float":
            call = _training._float_backward_on_device if on_device else _training._float_backward
            return call(dy, dlast, *given, y, saved, 2, wants_dx, True)
        call = _training._qat_backward_on_device if on_device else _training._qat_backward
        return call(dy, dlast, *given[2:], saved, None, gru._grids.key, False, 2, wants_dx, True)

    with torch.no_grad():
        for first, counts, masks, wants_dx in ((None, None, None, True), (h0, lengths, mask, False)):
            given = x, first, weights, counts, masks
            wanted = forwards(given, False)
            dy, dlast = wanted[0].sin(), wanted[1].cos()
            gradients_of_cpu = backwards(dy, dlast, given, wanted, wants_dx, False)
            with monkeypatch.context() as patched:
                device = OnDevice(patched)
                results = forwards(given, True)
                assert equal(results[:2], wanted[:2])
                found = backwards(dy, dlast, given, results, wants_dx, True)
                assert equal(found, gradients_of_cpu)
                assert found[phase == "quantized"].numel() == wants_dx * x.numel()
                assert device.said == ["forward"] + ["check"] * (phase == "quantized") + ["backward"]
        device = OnDevice(monkeypatch)
        results = forwards(given, True)
        nan = torch.full_like(dy, float("nan"))
        with pytest.raises(isobit.InvalidArgumentError, match=r"the gradient of y\[0, 0, 0\] is nan, must be finite"):
            backwards(nan, dlast, given, results, True, True)
        with pytest.raises(isobit.InvalidArgumentError, match=r"lengths\[1\] is 13, must be 0..12"):
            forwards((x, h0, weights, torch.tensor([1, 13, 1, 1]), mask), True)
        device.capturing = True
        with pytest.raises(isobit.FailedPreconditionError, match="lengths is on the CPU while a CUDA graph is"):
            forwards(given, True)
        given = x, None, weights, None, None
        device.said.clear()
        assert backwards(nan, dlast, given, forwards(given, True), True, True)[-1].isnan().any()
        assert device.said == ["forward", "backward"]  # there is nothing to look at yet
        if phase == "float":
            return
        device.capturing = False
        y, last, saved, _ = forwards((x, h0, weights, lengths, mask), True)
        device.shares = [0.0, 0.15] + [0.0] * 23
        moved = torch.cat([saved.new_zeros(1), saved])[1:]  # as a hook may leave it
        with pytest.warns(it.QuantizationWarning, match="more than 10 % of ih of layer 0 clip"):
            assert equal(backwards(dy, dlast, (x, h0, weights, lengths, mask), (y, last, moved), False, True),
                         gradients_of_cpu)
        none = _training._qat_forward_on_device(*given, None, gru._grids.key, 2, False, False, True)
        assert torch.equal(none[0], forwards(given, True)[0]) and none[2].shape == (0,)
        with pytest.raises(isobit.NotSupportedError, match="learned grids train on the CPU; call quantize"):
            _training._qat_forward_on_device(*given, torch.zeros(23), gru._grids.key, 2, False, True, True)
        monkeypatch.undo()
        with pytest.raises(TypeError, match="dy is on cpu, must be on a CUDA device, as other tensors"):
            _training._qat_backward_on_device(dy, dlast, weights, None, None, saved, None, gru._grids.key, False, 2,
                                              True, True)


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
def test_devices(monkeypatch):
    """Tensors that only say that they are on a device."""
    integers = quantized(quant_gru(C, H, 2, bidirectional=True))
    learning = [quantized(quant_gru(C, H), learn=learn) for learn in ("steps", "ranges")]
    said = []
    monkeypatch.setattr(_training._isobit, "gru_qat_device_saved_bytes",
                        lambda core, *sizes: said.append(sizes) or 64 * sizes[1] * sizes[2])
    with torch._subclasses.fake_tensor.FakeTensorMode(allow_non_fake_inputs=True):
        gru, host = it.QuantGRU(C, H, 2, bidirectional=True, device="cuda"), it.QuantGRU(C, H)
        x, hx = torch.zeros(T, N, C, device="cuda"), torch.zeros(4, N, H, device="cuda", requires_grad=True)
        mask = torch.ones(T, N, 2 * H, dtype=torch.bool, device="cuda")
        for lengths in (None, [12, 0, 5, 12], torch.tensor([12, 0, 5, 12]), torch.zeros(N, device="cuda").long()):
            y, last = gru(x, hx, lengths=lengths, zoneout=[mask, None])
            assert y.device == last.device == x.device and y.shape == (T, N, 2 * H)
        given = x, hx.detach(), [weight.detach() for weight in gru._flat()], lengths, None
        y, last, saved = _training.float_forward(*given, 2, True)
        found = _training.float_backward(y, last, *given, y, saved, 2, True, True)
        assert {tensor.device for tensor in (*found, saved)} == {x.device}
        assert [tensor.shape for tensor in found] == [tensor.shape for tensor in (*given[:2], *given[2])]
        gru._grids = integers._grids
        for keeps in (True, False):
            with torch.set_grad_enabled(keeps):
                y, last = gru(x, hx, lengths=lengths, zoneout=[mask, None])
            assert y.device == last.device == x.device and y.shape == (T, N, 2 * H) and last.shape == (4, N, H)
            assert y.requires_grad == keeps
        assert said == [(0, T, N)]  # without gradients nothing is kept
        y, last, saved, _ = _training.qat_forward(*given, None, gru._grids.key, 2, False, True, True)
        assert saved.shape == (64 * T * N,) and saved.dtype == torch.uint8 and saved.device == x.device
        found = _training.qat_backward(y, last, *given[2:], saved, None, gru._grids.key, False, 2, True, True)
        assert {tensor.device for tensor in found} == {x.device} and not found[0].numel()
        assert [tensor.shape for tensor in found[1:]] == [tensor.shape for tensor in (*given[:2], *given[2])]
        learned = it.QuantGRU(C, H, device="cuda")
        for of, name in zip(learning, ("log2_steps", "ranges")):
            learned._grids = of._grids
            learned.log2_steps = learned.ranges = None
            setattr(learned, name, torch.nn.Parameter(torch.zeros(3, device="cuda")))
            with pytest.raises(isobit.NotSupportedError, match=r"input is on cuda:0, must be on the CPU: learned grids "
                               r"train on the CPU; call quantize\(\) without learn, or move the module"):
                learned(x)
        with pytest.raises(isobit.NotSupportedError, match="h is on cuda:0, must be on the CPU: states of integer GRU"):
            it.hand_over(hx, gru, gru)
        for call, error, message in [
            (lambda: gru(x, zoneout=[mask[:3], None]), ValueError,
             r"zoneout\[0\] has shape \[3, 4, 20\], must be \[12, 4, 20\], as y"),
            (lambda: gru(x.cpu()), TypeError, "weight_ih_l0 is on cuda:0, must be on cpu, as input"),
            (lambda: host(x), TypeError, "weight_ih_l0 is on cpu, must be on cuda:0, as input"),
            (lambda: gru(x, hx.cpu()), TypeError, "hx is on cpu, must be on cuda:0, as input"),
            (lambda: gru(x, zoneout=[mask.cpu(), None]), TypeError, r"zoneout\[0\] is on cpu, must be on cuda:0"),
            (lambda: host(x.cpu(), lengths=torch.zeros(N, device="cuda").long()), TypeError,
             "lengths is on cuda:0, must be on cpu, as input, or on the CPU"),
        ]:
            with pytest.raises(error, match=message):
                call()


MEMORY = """
    import resource
    import sys
    import torch
    import isobit.torch as it
    torch.set_num_threads(1)
    gru = it.QuantGRU(8, 64)
    x = torch.randn(10, 2, 8)
    if sys.argv[1] == "quantized":
        with it.calibrating(gru):
            gru(x)
        gru.quantize()
    gru(x)[0].sum().backward()
    gru.zero_grad()
    before = [p.detach().clone() for p in gru.parameters()]
    now = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    x = torch.randn(20000, 16, 8)
    resource.setrlimit(resource.RLIMIT_AS, (now + int(sys.argv[2]) * 2**20, resource.RLIM_INFINITY))
    try:
        gru(x)[0].sum().backward()
    except (MemoryError, RuntimeError) as error:
        print(type(error).__name__, error)
    else:
        print("enough")
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert all(p.grad is None for p in gru.parameters())
    assert all(torch.equal(p, b) for p, b in zip(gru.parameters(), before))
    gru(x[:100])[0].sum().backward()
"""


@PHASES
@pytest.mark.parametrize("mebibytes", [50, 200, 600])
def test_out_of_memory(phase, mebibytes):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(MEMORY), phase, str(mebibytes)], env=environment,
                          capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "not enough memory" in done.stdout or "can't allocate memory" in done.stdout, done.stdout
