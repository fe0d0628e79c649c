# SPDX-License-Identifier: Apache-2.0
"""QuantGRU trains its floats on a CUDA device: gradients near those of float64, and the same bytes in every run.

Skipped without a device; ISOBIT_REQUIRE=cuda makes that a failure. ISOBIT_CUDA_LIBRARY names libisobit_cuda.so. pytest
runs it, or `python test_torch_training_cuda.py` where there is none.
"""
import copy
import os
import random
import subprocess
import sys
import textwrap

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


def near(found, wanted):
    assert len(found) == len(wanted)
    for i, (got, want) in enumerate(zip(found, wanted)):
        assert got.device.type == "cuda" and got.shape == want.shape and got.dtype == torch.float32
        error, norm = torch.linalg.norm(got.cpu() - want), torch.linalg.norm(want)
        assert error <= NEAR * norm, (i, list(want.shape), error.item(), norm.item())


class Case:
    """All that a call can have: layers, both directions, first states, lengths, masks."""

    def __init__(self, hidden, seed=5):
        self.gru = quant_gru(C, hidden, 2, bidirectional=True, seed=seed)
        self.gru.check_finite = False  # nothing waits
        self.x = normal(T, 9, C, seed=seed).cuda().requires_grad_()
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


def test_the_same_bytes_in_20_runs():
    for hidden in (48, 160, 530):  # a block, a cluster, a product for each step
        case = Case(hidden)
        assert len({hashed(case.run()) for _ in range(20)}) == 1


def test_the_same_bytes_on_streams_and_in_graphs():
    for hidden in (48, 160, 530):
        case = Case(hidden)
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
        other = Case(hidden, seed=9)  # the same graph on other numbers
        with torch.no_grad():
            for to, of in zip([*case.gru.parameters(), case.x, case.hx, case.lengths, case.zoneout, case.factors],
                              [*other.gru.parameters(), other.x, other.hx, other.lengths.flip(0), other.zoneout,
                               other.factors]):
                to.copy_(of)
        graph.replay()
        assert hashed(captured) == hashed(case.run()) != wanted


def test_nothing_waits():
    """A step returns while work before it runs, and sees what that work writes; its memory is given back to torch."""
    case = Case(64)
    new = normal(T, 9, C, seed=20).cuda()
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
    gru = quant_gru(C, H, 2)
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
    gru = quant_gru(C, H, 2, bidirectional=True)
    x = normal(T, N, C).cuda()
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
    gru = quant_gru(C, H)
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
    quantized = copy.deepcopy(gru)
    with it.calibrating(quantized):
        quantized(x)
    quantized.quantize()
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
            (lambda: quantized(x), isobit.NotSupportedError,
             "input is on cuda:0, must be on the CPU: a QuantGRU that is quantized trains there")):
        refused(call, error, *parts)
    assert torch.equal(gru(x, lengths=torch.tensor([99, 12, -1, 4]).cuda())[0], gru(x, lengths=[12, 12, 0, 4])[0])
    assert torch.equal(quantized.cpu()(x.cpu())[0], quantized.freeze()(x.cpu()))


WITHOUT = """
    import torch
    import isobit
    import isobit.torch as it
    gru, x = it.QuantGRU(3, 4), torch.ones(2, 1, 3)
    gru(x)[0].sum().backward()
    try:
        gru.cuda()(x.cuda())
    except isobit.NotSupportedError as error:
        print(error)
"""


def test_without_the_library():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "ISOBIT_CUDA_LIBRARY": "/nowhere/cuda.so"}
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(WITHOUT)], env=environment, capture_output=True,
                          text=True, check=True)
    for part in ("a CUDA device needs libisobit_cuda.so, which ISOBIT_CUDA_LIBRARY names: /nowhere/cuda.so",
                 "Build it with nvcc (docs/install.md) and set ISOBIT_CUDA_LIBRARY to its full path"):
        assert part in done.stdout, done.stdout


def test_other_devices():
    """Tensors decide where a call runs; the current device stays."""
    if torch.cuda.device_count() < 2:
        return
    gru = quant_gru(C, H, 2)
    x = normal(T, N, C).cuda()
    wanted = hashed(gradients(gru, x, lengths=[12, 3, 0, 7]))
    other = copy.deepcopy(gru).to("cuda:1")
    assert hashed(gradients(other, x.to("cuda:1"), lengths=[12, 3, 0, 7])) == wanted
    assert torch.cuda.current_device() == 0
    refused(lambda: gru(x.to("cuda:1")), TypeError, "weight_ih_l0 is on cuda:0, must be on cuda:1, as input")
    refused(lambda: gru(x, lengths=torch.ones(N, dtype=torch.int64, device="cuda:1")), TypeError,
            "lengths is on cuda:1, must be on cuda:0, as input, or on the CPU")


if __name__ == "__main__":
    sys.exit(main(globals()))
