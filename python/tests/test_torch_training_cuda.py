# SPDX-License-Identifier: Apache-2.0
"""QuantGRU trains on a CUDA device: gradients of floats near those of float64, those of integers near the CPU's,
results of integers with the bytes of what is deployed, and the same bytes in every run.

Skipped without a device; ISOBIT_REQUIRE=cuda makes that a failure. ISOBIT_CUDA_LIBRARY names libisobit_cuda.so. pytest
runs it, or `python test_torch_training_cuda.py` where there is none.
"""
import copy
import gc
import os
import pathlib
import pickle
import random
import subprocess
import sys
import tempfile
import textwrap
import threading
import warnings

from device_script import LONG, main, mark, refused, still_running, torch

import isobit

if torch is not None:
    from gru_gradients import equal, gradients, hashed, reference

    import isobit.torch as it

pytestmark = mark()
C, H, T, N = 6, 40, 12, 4
NEAR = 1e-5
HIDDEN = (1, 2, 7, 16, 33, 48, 64, 100, 128, 129, 160, 256, 300, 400, 512, 513, 600)


def normal(*shape, seed=7):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def quant_gru(*args, seed=3, **kwargs):
    """With PyTorch's default initialisation, on the device."""
    torch.manual_seed(seed)
    return it.QuantGRU(*args, **kwargs).cuda()


def quantized(gru, x, **options):
    with it.calibrating(gru):
        gru(x)
    gru.quantize(**options)
    return gru


def both():
    """A GRU in floats, and one in integers."""
    for integers in (False, True):
        gru = quant_gru(C, H, 2)
        yield quantized(gru, normal(T, N, C).cuda(), bits="6") if integers else gru


def near(found, wanted):
    assert len(found) == len(wanted)
    for i, (got, want) in enumerate(zip(found, wanted)):
        assert got.device.type == "cuda" and got.shape == want.shape and got.dtype == torch.float32
        error, norm = torch.linalg.norm(got.cpu() - want), torch.linalg.norm(want)
        assert error <= NEAR * norm, (i, list(want.shape), error.item(), norm.item())


class Case:
    """All that a call can have: layers, both directions, first states, lengths, masks."""

    def __init__(self, hidden, bits=None, seed=5):
        self.gru = quant_gru(C, hidden, 2, bidirectional=True, seed=seed)
        self.gru.check_finite = False  # nothing waits
        self.x = normal(T, 9, C, seed=seed).cuda().requires_grad_()
        if bits is not None:
            quantized(self.gru, self.x.detach(), bits=bits)
        self.hx = (normal(4, 9, hidden, seed=seed + 1) / 4).cuda().requires_grad_()
        self.lengths = torch.tensor([12, 3, 7, 0, 12, 9, 11, 2, 12]).cuda()
        self.zoneout = (normal(2, T, 9, 2 * hidden, seed=seed + 2) < 1).cuda()
        self.factors = normal(T, 9, 2 * hidden, seed=seed + 3).cuda()

    def run(self):
        """y, the last states and all gradients."""
        y, last = self.gru(self.x, self.hx, lengths=self.lengths, zoneout=self.zoneout)
        loss = (y * self.factors).sum() + last.sin().sum()
        return [y.detach(), last.detach(), *torch.autograd.grad(loss, [*self.gru.parameters(), self.x, self.hx])]


def test_gradients_are_those_of_float64():
    worst = 0
    for seed in range(50):
        choose = random.Random(seed)
        hidden = HIDDEN[seed] if seed < len(HIDDEN) else choose.randint(1, 600)
        gru = quant_gru(choose.randint(1, 100), hidden, choose.randint(1, 3), seed=seed, bias=choose.random() < 0.8,
                        batch_first=choose.random() < 0.5, bidirectional=choose.random() < 0.5)
        steps, batch = choose.randint(1, 30), choose.choice([1, 2, 3, 5] + ([33] if hidden < 200 else []))
        x = normal(*((batch, steps) if gru.batch_first else (steps, batch)), gru.input_size, seed=seed).cuda()
        hx = (torch.rand(gru.num_layers * (1 + gru.bidirectional), batch, hidden) - 0.5).cuda()
        lengths = [choose.randint(0, steps) for _ in range(batch)] if choose.random() < 0.6 else [steps] * batch
        wanted, y = reference(gru, x, hx, lengths)
        given = choose.choice([lengths, torch.tensor(lengths), torch.tensor(lengths).cuda()])
        found = gradients(gru, x, hx, lengths=given)
        try:
            near(found, wanted)
        except AssertionError as error:
            raise AssertionError(f"{gru}, steps {steps}, lengths {lengths}: {error}") from error
        assert (gru(x, hx, lengths=given)[0].cpu() - y).abs().max() < 1e-5
        worst = max([worst] + [(torch.linalg.norm(got.cpu() - want) / torch.linalg.norm(want)).item()
                               for got, want in zip(found, wanted) if want.any()])
        if min(lengths) > 0:
            packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, gru.batch_first, enforce_sorted=False)
            of_packed, last = gru(packed, hx)
            assert torch.equal(last, gru(x, hx, lengths=lengths)[1])
            y = torch.nn.utils.rnn.pad_packed_sequence(of_packed, gru.batch_first, total_length=steps)[0]
            assert torch.equal(y, gru(x, hx, lengths=given)[0])
    print(f"  the largest difference of a tensor, by its norm: {worst:.1e}")


def test_masks_are_those_of_the_cpu():
    for hidden, batch_first in ((33, True), (160, False), (530, True)):
        gru = quant_gru(C, hidden, 2, bidirectional=True, batch_first=batch_first)
        x = normal(*((N, T) if batch_first else (T, N)), C)
        mask = normal(*x.shape[:2], 2 * hidden, seed=8) < 0.8
        wanted = gradients(copy.deepcopy(gru).cpu(), x, zoneout=[mask, None])
        found = gradients(gru, x.cuda(), zoneout=[mask.cuda(), None])
        near(found, wanted)
        assert equal(found, gradients(gru, x.cuda(), zoneout=torch.stack([mask, mask | True]).to(torch.uint8).cuda()))
        y, last = gru(x.cuda(), zoneout=[None, torch.zeros_like(mask).cuda()])  # every state stays the first one
        assert not y.any() and not last[2:].any() and last[:2].any()


def test_forms_of_input():
    gru = quant_gru(C, H, 2)
    x = normal(T, N, C).cuda()
    y, last = gru(x)
    alone, alone_last = gru(x[:, 2])
    assert alone.shape == (T, H) and alone_last.shape == (2, H)
    assert (alone - y[:, 2]).abs().max() < 1e-6 and (alone_last - last[:, 2]).abs().max() < 1e-6
    before, state = gru(x[:5])
    after, end = gru(x[5:], state)
    assert (torch.cat([before, after]) - y).abs().max() < 1e-6 and (end - last).abs().max() < 1e-6
    after.sum().backward()  # through the state, too
    assert gru.weight_hh_l0.grad.abs().sum() > 0
    assert torch.equal(gru(x.transpose(0, 1).contiguous().transpose(0, 1))[0], y)
    none, same = gru(x[:0], last)
    assert none.shape == (0, N, H) and torch.equal(same, last)
    assert gru(x[:, :0])[0].shape == (T, 0, H)
    frozen = x.clone().requires_grad_()
    with torch.no_grad():
        assert torch.equal(gru(frozen)[0], y)
    one = quant_gru(C, H)
    one.weight_ih_l0.requires_grad_(False)
    one(x)[0].sum().backward()
    assert one.weight_ih_l0.grad is None and one.weight_hh_l0.grad.abs().sum() > 0


# In floats and integers: a block, a cluster, a product for each step, which codes of 16 bits have, too.
CASES = (48, None), (160, None), (530, None), (48, "8"), (160, "8"), (530, "8"), (48, "16,gate_in=14,gate_out=12")


def test_the_same_bytes_in_20_runs():
    for hidden, bits in CASES:
        case = Case(hidden, bits)
        assert len({hashed(case.run()) for _ in range(20)}) == 1


def test_the_same_bytes_on_streams_and_in_graphs():
    for hidden, bits in CASES:
        case = Case(hidden, bits)
        wanted = hashed(case.run())
        torch.cuda.synchronize()
        found, streams = [], [torch.cuda.Stream() for _ in range(2)]
        for _ in range(3):  # both at once
            for stream in streams:
                with torch.cuda.stream(stream):
                    torch.cuda._sleep(LONG // 20)
                    found.append(case.run())
        torch.cuda.synchronize()
        assert {hashed(run) for run in found} == {wanted}

        with torch.cuda.stream(streams[0]):
            for _ in range(3):
                case.run()
        torch.cuda.synchronize()
        case.gru.check_finite = True  # is left out in a capture
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = case.run()
        for _ in range(5):
            for tensor in captured:
                tensor.fill_(float("nan"))
            graph.replay()
            assert hashed(captured) == wanted
        other = Case(hidden, bits, seed=9)  # the same graph on other numbers, of integers on the same grids
        with torch.no_grad():
            for to, of in zip([*case.gru.parameters(), case.x, case.hx, case.lengths, case.zoneout, case.factors],
                              [*other.gru.parameters(), other.x, other.hx, other.lengths.flip(0), other.zoneout,
                               other.factors]):
                to.copy_(of)
        graph.replay()
        assert hashed(captured) == hashed(case.run()) != wanted


def test_nothing_waits():
    """A step returns while work before it runs, and sees what that work writes; its memory is given back to torch."""
    new = normal(T, 9, C, seed=20).cuda()
    for bits in (None, "8"):
        case = Case(64, bits)
        numbers = case.lengths.tolist()
        for lengths in (case.lengths, numbers):
            case.lengths = lengths
            case.run()
            torch.cuda.synchronize()
            torch.cuda._sleep(LONG)
            with torch.no_grad():
                case.x.copy_(new)
            found = case.run()
            assert still_running(), "a call waited"
            assert hashed(found) == hashed(case.run())
            del found
        used = torch.cuda.memory_allocated()
        for _ in range(20):
            case.run()
        torch.cuda.synchronize()
        assert torch.cuda.memory_allocated() == used


def test_many_sizes():
    """More than are remembered, and the first ones again."""
    gru = quant_gru(C, H)
    x = normal(90, 1, C).cuda()
    found = [hashed(gradients(gru, x[:steps])) for steps in range(1, 91)]
    assert found == [hashed(gradients(gru, x[:steps])) for steps in range(1, 91)]


def test_training():
    torch.manual_seed(5)
    for hidden in (24, 160, 520):
        gru, head = it.QuantGRU(C, hidden, batch_first=True).cuda(), torch.nn.Linear(hidden, 3).cuda()
        optimizer = torch.optim.Adam([*gru.parameters(), *head.parameters()], lr=0.003)
        x = normal(32, T, C).cuda()
        wanted, losses = x[..., :3].cumsum(1).clamp(-1, 1), []
        for _ in range(100):
            optimizer.zero_grad()
            loss = (head(gru(x)[0]) - wanted).square().mean()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(gru.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < losses[0] / 2, losses[::20]
        state = copy.deepcopy(gru).cpu()  # goes on where it is wanted
        assert (state(x.cpu())[0] - gru(x)[0].cpu()).abs().max() < 1e-5


def test_the_contract_of_autograd():
    for gru in both():
        check_the_contract_of_autograd(gru)


def check_the_contract_of_autograd(gru):
    x = normal(T, N, C).cuda().requires_grad_()
    plain = gradients(gru, x)
    y, _ = gru(x)
    twice = [torch.autograd.grad(y.sin().sum(), list(gru.parameters()), retain_graph=True) for _ in range(2)]
    assert equal(*twice)
    with torch.autograd.graph.save_on_cpu():
        assert equal(gradients(gru, x), plain)

    def checkpointed(v, hx=None):
        return torch.utils.checkpoint.checkpoint(gru, v, use_reentrant=False)

    checkpointed.parameters, checkpointed.zero_grad = gru.parameters, gru.zero_grad
    assert equal(gradients(checkpointed, x), plain)
    first = torch.autograd.grad(gru(x)[0].sin().sum(), x, create_graph=True)[0]
    refused(lambda: first.square().sum().backward(), isobit.NotSupportedError,
            "double backward: QuantGRU has no gradient of its gradients")
    with torch.no_grad():
        gru.weight_hh_l0.mul_(0.5)
    refused(lambda: y.sum().backward(), RuntimeError, "modified by an inplace operation")


def test_compiled_and_autocast():
    x = normal(T, N, C).cuda()
    floats, integers = (quant_gru(C, H, 2, bidirectional=True) for _ in range(2))
    for gru in (floats, quantized(integers, x, bits="6")):
        torch._dynamo.reset()
        check_compiled_and_autocast(gru, x)
    compiled = torch.compile(integers, fullgraph=True, backend="aot_eager")
    for bits, steps, batch in (("6", 7, 3), ("5", 5, 2), ("5", T, N)):  # other sizes and grids
        quantized(integers, x, bits=bits)
        piece = x[:steps, :batch]
        found, wanted = ([y.detach(), *torch.autograd.grad(y.sin().sum(), list(integers.parameters()))]
                         for y in (compiled(piece)[0], integers(piece)[0]))
        assert equal(found, wanted)


def check_compiled_and_autocast(gru, x):
    compiled = torch.compile(gru, fullgraph=True, backend="aot_eager")
    for lengths in (None, torch.tensor([12, 0, 5, 12]).cuda()):
        wanted = torch.autograd.grad(gru(x, lengths=lengths)[0].sin().sum(), list(gru.parameters()))
        assert equal(torch.autograd.grad(compiled(x, lengths=lengths)[0].sin().sum(), list(gru.parameters())), wanted)
    for dtype in (torch.float16, torch.bfloat16):
        half = x.to(dtype)
        with torch.autocast("cuda", dtype=dtype):
            y, last = gru(half)
        assert y.dtype == last.dtype == dtype and torch.equal(y, gru(half.float())[0].to(dtype))
        y.float().sum().backward()
        assert all(p.grad.dtype == torch.float32 for p in gru.parameters())


def test_a_loss_that_is_not_finite():
    for gru in both():
        check_a_loss_that_is_not_finite(gru)


def check_a_loss_that_is_not_finite(gru):
    x = normal(T, N, C).cuda()
    for poison in (float("nan"), float("inf")):
        y, last = gru(x)
        refused(lambda of=y, by=poison: (of.sum() * by).backward(), isobit.InvalidArgumentError,
                f"the gradient of y[0, 0, 0] is {poison}, must be finite")
        refused(lambda of=last, by=poison: (of.sum() * by).backward(), isobit.InvalidArgumentError,
                f"the gradient of h_n[0, 0, 0] is {poison}")
        assert all(p.grad is None for p in gru.parameters())
    gru.check_finite = False
    optimizer = torch.optim.Adam(gru.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**120)
    before = copy.deepcopy(gru.state_dict())
    scaler.scale(gru(x)[0].sum() * 1e30).backward()
    scaler.step(optimizer)
    scaler.update()
    assert all(torch.equal(before[name], value) for name, value in gru.state_dict().items())


def capture(call):
    torch.cuda.synchronize()
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        call()


def test_refusals():
    gru, host = quant_gru(C, H, 2), it.QuantGRU(C, H, 2)
    x, hx = normal(T, N, C).cuda(), torch.zeros(2, N, H).cuda()
    mask = torch.ones(T, N, H, dtype=torch.bool)
    gru(x)
    integers = quantized(copy.deepcopy(gru), x)
    integers(x)
    learning = [quantized(copy.deepcopy(gru), x, learn=learn).cuda() for learn in ("steps", "ranges")]
    learned = "input is on cuda:0, must be on the CPU: learned grids train on the CPU; call quantize() without learn"
    for call, error, *parts in (
            (lambda: gru(x.cpu()), TypeError, "weight_ih_l0 is on cuda:0, must be on cpu, as input"),
            (lambda: host(x), TypeError, "weight_ih_l0 is on cpu, must be on cuda:0, as input"),
            (lambda: gru(x, hx.cpu()), TypeError, "hx is on cpu, must be on cuda:0, as input"),
            (lambda: gru(x, zoneout=[mask, None]), TypeError, "zoneout[0] is on cpu, must be on cuda:0, as input"),
            (lambda: gru(x, lengths=[1, 2, 13, 4]), ValueError, "lengths[2] is 13, must be 0..12"),
            (lambda: gru(x, lengths=[1, 2]), ValueError, "lengths has shape [2], must be [4]"),
            (lambda: host(x.cpu(), lengths=torch.tensor([1, 2, 3, 4]).cuda()), TypeError,
             "lengths is on cuda:0, must be on cpu, as input"),
            (lambda: capture(lambda: gru(x, lengths=[1, 2, 3, 4])), isobit.FailedPreconditionError,
             "lengths is on the CPU while a CUDA graph is captured, must be on cuda:0"),
            (lambda: gru(x.double()), TypeError, "input is float64, must be float32"),
            (lambda: gru(x[..., 1:]), ValueError, "input has shape [12, 4, 5], must be [T, N, C]"),
            (lambda: integers(x.cpu()), TypeError, "weight_ih_l0 is on cuda:0, must be on cpu, as input"),
            (lambda: integers(x, hx.cpu()), TypeError, "hx is on cpu, must be on cuda:0, as input"),
            (lambda: integers(x, zoneout=[None, mask[:3].cuda()]), ValueError,
             "zoneout[1] has shape [3, 4, 40], must be [12, 4, 40], as y"),
            (lambda: integers(x, lengths=[1, 2, 13, 4]), ValueError, "lengths[2] is 13, must be 0..12"),
            (lambda: capture(lambda: integers(x, lengths=[1, 2, 3, 4])), isobit.FailedPreconditionError,
             "lengths is on the CPU while a CUDA graph is captured, must be on cuda:0"),
            (lambda: learning[0](x), isobit.NotSupportedError, learned),
            (lambda: learning[1](x), isobit.NotSupportedError, learned),
            (lambda: it.hand_over(hx, integers, integers), isobit.NotSupportedError, "h is on cuda:0, must be on the")):
        refused(call, error, *parts)
    for of in (gru, integers):
        assert torch.equal(of(x, lengths=torch.tensor([99, 12, -1, 4]).cuda())[0], of(x, lengths=[12, 12, 0, 4])[0])
    for of in learning:
        of.cpu()(x.cpu())[0].sum().backward()  # where it may be
    assert torch.equal(integers.cpu()(x.cpu())[0], integers.freeze()(x.cpu()))


# ---- Integers

def test_integers_that_are_trained_are_those_of_the_cpu_and_of_the_file():
    for hidden, bits, scale in ((24, "4,h=8", "pow2"), (160, "8", "real"), (520, "6,h=9", "pow2")):
        torch.manual_seed(5)
        gru, head = it.QuantGRU(C, hidden, bidirectional=True).cuda(), torch.nn.Linear(2 * hidden, 3).cuda()
        optimizer = torch.optim.Adam([*gru.parameters(), *head.parameters()], lr=0.003)
        x, hx = normal(T, 16, C).cuda(), (normal(2, 16, hidden, seed=8) / 4).cuda()
        lengths = torch.tensor([12, 3, 7, 0] * 4).cuda()
        wanted, losses = x[..., :3].cumsum(0).clamp(-1, 1), []

        def step():
            optimizer.zero_grad()
            loss = (head(gru(x)[0]) - wanted).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())

        def compare():
            frozen = copy.deepcopy(gru).freeze()
            with tempfile.TemporaryDirectory() as folder:
                frozen.save(pathlib.Path(folder) / "gru.safetensors")
                loaded = isobit.load(pathlib.Path(folder) / "gru.safetensors")
            host = copy.deepcopy(gru).cpu()
            for first, counts in ((None, None), (hx, lengths)):
                with torch.no_grad():
                    y, last = gru(x, first, lengths=counts)
                of_first, of_counts = (None if of is None else of.cpu() for of in (first, counts))
                with torch.no_grad():
                    of_host = host(x.cpu(), of_first, lengths=of_counts)
                assert equal([y.cpu(), last.cpu()], of_host)
                state = loaded.initial_state(16, first, like=x)
                of_file = loaded(x, state, lengths=counts, whole_sequence=True)
                assert equal([y, last], [of_file, state.values(x)])

        for _ in range(50):
            step()
        quantized(gru, x, bits=bits, scale=scale)
        start = len(losses)
        for i in range(150):
            if i % 50 == 0:
                compare()
            if i == 100:
                y = gru(x)[0]
                gru.hold_weight_grids()
                assert torch.equal(gru(x)[0], y)
            step()
        compare()  # after the last step
        assert sum(losses[-10:]) / 10 < losses[start], losses[::20]
        y = gru(x)[0].detach()
        gru.freeze()
        assert torch.equal(gru(x)[0], y) and gru.phase == "frozen"


WIDTHS = "8", "4,h=8", "6,h=9", "12", "16,gate_in=14,gate_out=12"


def test_gradients_of_integers_are_those_of_the_cpu():
    worst = 0
    for seed in range(40):
        choose = random.Random(seed)
        hidden = HIDDEN[seed] if seed < len(HIDDEN) else choose.randint(1, 600)
        gru = quant_gru(choose.randint(1, 100), hidden, choose.randint(1, 3), seed=seed, bias=choose.random() < 0.8,
                        batch_first=choose.random() < 0.5, bidirectional=choose.random() < 0.5)
        steps, batch = choose.randint(1, 30), choose.choice([1, 2, 3, 5] + ([33] if hidden < 200 else []))
        shape = (batch, steps) if gru.batch_first else (steps, batch)
        x = normal(*shape, gru.input_size, seed=seed).cuda()
        hx = (torch.rand(gru.num_layers * (1 + gru.bidirectional), batch, hidden) - 0.5).cuda()
        lengths = [choose.randint(0, steps) for _ in range(batch)] if choose.random() < 0.6 else None
        masks = None
        if choose.random() < 0.5:
            masks = [(normal(*shape, (1 + gru.bidirectional) * hidden, seed=layer) < 1).cuda()
                     for layer in range(gru.num_layers)]
        bits, scale = choose.choice(WIDTHS), choose.choice(["pow2", "real"])
        quantized(gru, x, bits=bits, scale=scale)
        if choose.random() < 0.3:
            gru.hold_weight_grids()
        with torch.no_grad():
            for parameter in gru.parameters():
                parameter.mul_(1.2)  # some numbers clip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", it.QuantizationWarning)
            host, of_host = copy.deepcopy(gru).cpu(), None if masks is None else [mask.cpu() for mask in masks]
            wanted = gradients(host, x.cpu(), hx.cpu(), lengths=lengths, zoneout=of_host)
            found = gradients(gru, x, hx, lengths=lengths, zoneout=masks)
            results = host(x.cpu(), hx.cpu(), lengths=lengths, zoneout=of_host)
        what = f"seed {seed}: {gru}, bits {bits}, scale {scale}, steps {steps}, batch {batch}, lengths {lengths}"
        assert equal([of.detach().cpu() for of in gru(x, hx, lengths=lengths, zoneout=masks)], results), what
        try:
            near(found, wanted)
        except AssertionError as error:
            raise AssertionError(f"{what}: {error}") from error
        worst = max([worst] + [(torch.linalg.norm(got.cpu() - want) / torch.linalg.norm(want)).item()
                               for got, want in zip(found, wanted) if want.any()])
    print(f"  the largest difference of a tensor, by its norm: {worst:.1e}")


def test_forms_of_integers():
    """One sequence without a batch, and two pieces with the state between them, give the bytes of the whole."""
    for hidden in (H, 160, 530):
        gru = quant_gru(C, hidden, 2)
        x = normal(T, N, C).cuda()
        quantized(gru, x, bits="6,h=9")
        y, last = gru(x)
        alone, alone_last = gru(x[:, 2])
        assert torch.equal(alone, y[:, 2]) and torch.equal(alone_last, last[:, 2])
        before, state = gru(x[:5])
        after, end = gru(x[5:], state)
        assert torch.equal(torch.cat([before, after]), y) and torch.equal(end, last)
        after.sum().backward()  # through the state, too
        assert gru.weight_hh_l0.grad.abs().sum() > 0
        assert torch.equal(gru(x.transpose(0, 1).contiguous().transpose(0, 1))[0], y)
        none, same = gru(x[:0], last)
        assert none.shape == (0, N, hidden) and torch.equal(same, last)
        assert gru(x[:, :0])[0].shape == (T, 0, hidden)
        packed = torch.nn.utils.rnn.pack_padded_sequence(x, [12, 3, 7, 1], enforce_sorted=False)
        of_packed = torch.nn.utils.rnn.pad_packed_sequence(gru(packed)[0])[0]
        assert torch.equal(of_packed, gru(x, lengths=[12, 3, 7, 1])[0])
        with torch.no_grad():
            assert torch.equal(gru(x)[0], y)
        gru.zero_grad()
        gru.weight_ih_l0.requires_grad_(False)
        gru(x)[0].sum().backward()
        assert gru.weight_ih_l0.grad is None and gru.weight_hh_l0.grad.abs().sum() > 0


def test_what_the_numbers_tell_is_said_at_backward():
    x = normal(T, N, C).cuda()
    nan = x.clone()
    nan[3, 1, 2] = float("nan")
    gru = quantized(quant_gru(C, H), x)
    y, _ = gru(nan)  # waits for nothing
    refused(lambda: y.sum().backward(), isobit.InvalidArgumentError,
            f"training: x[{(3 * N + 1) * C + 2}] is NaN, must be a number")
    assert all(p.grad is None for p in gru.parameters())
    with torch.no_grad():  # there is no backward that could
        refused(lambda: gru(nan), isobit.InvalidArgumentError, f"training: x[{(3 * N + 1) * C + 2}] is NaN")
        gru(x)
    broken = copy.deepcopy(gru)
    with torch.no_grad():
        broken.weight_ih_l0[1, 2] = float("nan")
    refused(lambda: broken(x)[0].sum().backward(), isobit.InvalidArgumentError, "layer 0 W row", "is not finite")
    gru.check_finite = False
    gru(nan)[0].sum().backward()  # is not looked at
    gru.check_finite = True
    gru.zero_grad()
    gru(x)[0].sum().backward()

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        y, _ = gru(20 * x)
        assert not said
        y.sum().backward()
        assert any("% of x clip, where gradients stop" in str(warning.message) for warning in said)
        assert all(warning.category is it.QuantizationWarning for warning in said)
        said.clear()
        gru.check_finite = False
        gru(20 * x)[0].sum().backward()
        assert not said
    wild = quant_gru(C, H)
    with torch.no_grad():
        wild.weight_hh_l0.normal_(0, 8)
        wild.weight_ih_l0.mul_(0.01)
        wild.bias_ih_l0[H:2 * H] = -1
    x = normal(60, N, C).cuda()
    quantized(wild, x, bits="16,gate_in=14,gate_out=12")
    messages = []
    for of in (wild, copy.deepcopy(wild).cpu()):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            of(x.to(of.weight_ih_l0.device))[1].sum().backward()
        messages.append(sorted({str(warning.message) for warning in said if "gradient" in str(warning.message)}))
    assert messages[0] == messages[1], messages


def test_copies_of_integers():
    x = normal(T, N, C).cuda()
    gru = quantized(quant_gru(C, H, 2), x, bits="6")
    wanted = gradients(gru, x)
    with tempfile.TemporaryDirectory() as folder:
        torch.save(gru, pathlib.Path(folder) / "gru.pt")
        saved = torch.load(pathlib.Path(folder) / "gru.pt", weights_only=False)
    for copied in (copy.deepcopy(gru), pickle.loads(pickle.dumps(gru)), saved, copy.deepcopy(gru).cpu().cuda()):
        assert copied.phase == "quantized" and equal(gradients(copied, x), wanted)
    of_x = x.clone().requires_grad_()
    y, last = gru(of_x)
    weights = list(gru.parameters())
    gru.hold_weight_grids()  # backward is that of the grids of its forward
    del gru
    gc.collect()
    loss = (y * torch.arange(y.numel()).reshape(y.shape).sin().cuda()).sum() + last.sin().sum()
    loss.backward()
    assert equal([weight.grad for weight in weights] + [of_x.grad], wanted)


def test_threads_that_come_first():
    """Grids are put on the device once, whoever is first."""
    x = normal(T, N, C).cuda()
    gru = quantized(quant_gru(C, 160, 2), x, bits="6")
    found, together = [], threading.Barrier(4)

    def work():
        together.wait()
        y, last = gru(x)
        found.append(hashed([y.detach(), last.detach(), *torch.autograd.grad(y.sum(), list(gru.parameters()))]))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 and len(set(found)) == 1


WITHOUT = """
    import torch
    import isobit
    import isobit.torch as it
    gru, x = it.QuantGRU(3, 4), torch.ones(2, 1, 3)
    gru(x)[0].sum().backward()
    for phase in ("float", "quantized"):
        if phase == "quantized":
            with it.calibrating(gru.cpu()):
                gru(x)
            gru.quantize()
        try:
            gru.cuda()(x.cuda())
        except isobit.NotSupportedError as error:
            print(phase, error)
"""


def test_without_the_library():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "ISOBIT_CUDA_LIBRARY": "/nowhere/cuda.so"}
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(WITHOUT)], env=environment, capture_output=True,
                          text=True, check=True)
    for part in ("float a CUDA device needs libisobit_cuda.so",
                 "quantized a CUDA device needs libisobit_cuda.so, which ISOBIT_CUDA_LIBRARY names: /nowhere/cuda.so",
                 "Build it with nvcc (docs/install.md) and set ISOBIT_CUDA_LIBRARY to its full path"):
        assert part in done.stdout, done.stdout


def test_other_devices():
    """Tensors decide where a call runs; the current device stays."""
    if torch.cuda.device_count() < 2:
        return
    x = normal(T, N, C).cuda()
    for gru in both():
        wanted = hashed(gradients(gru, x, lengths=[12, 3, 0, 7]))
        other = copy.deepcopy(gru).to("cuda:1")
        assert hashed(gradients(other, x.to("cuda:1"), lengths=[12, 3, 0, 7])) == wanted
        assert torch.cuda.current_device() == 0
    refused(lambda: gru(x.to("cuda:1")), TypeError, "weight_ih_l0 is on cuda:0, must be on cuda:1, as input")
    refused(lambda: gru(x, lengths=torch.ones(N, dtype=torch.int64, device="cuda:1")), TypeError,
            "lengths is on cuda:1, must be on cuda:0, as input, or on the CPU")


if __name__ == "__main__":
    sys.exit(main(globals()))
