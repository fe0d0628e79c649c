# SPDX-License-Identifier: Apache-2.0
"""Gradients of a QuantGRU on any device, and those of torch.nn.GRU in float64, of one function of both results."""
import hashlib

import torch


def loss_of(y, last):
    # Its numbers are the host's on every device.
    return (y * torch.arange(y.numel()).reshape(y.shape).sin().to(y.device)).sum() + last.sin().sum()


def gradients(gru, x, hx=None, **options):
    """Those of the weights, of x and of hx."""
    x = x.detach().clone().requires_grad_()
    hx = None if hx is None else hx.detach().clone().requires_grad_()
    loss_of(*gru(x, hx, **options)).backward()
    found = [p.grad.clone() for p in gru.parameters()] + [x.grad] + ([] if hx is None else [hx.grad])
    gru.zero_grad()
    return found


def reference(gru, x, hx, lengths):
    """torch.nn.GRU in float64 on the CPU, for each sequence alone: y is 0 past a length. Also y."""
    double = torch.nn.GRU(gru.input_size, gru.hidden_size, gru.num_layers, bias=gru.bias,
                          bidirectional=gru.bidirectional).double()
    double.load_state_dict(gru.state_dict())
    x64 = x.detach().cpu().double().requires_grad_()
    h64 = hx.detach().cpu().double().requires_grad_()
    ys, lasts = [], []
    for n, length in enumerate(lengths):
        sequence = x64[n, :length] if gru.batch_first else x64[:length, n]
        first = h64[:, n]
        y, last = double(sequence, first) if length else (x64.new_zeros(0, ys[0].shape[-1] if ys else 1), first)
        steps = x.shape[1] if gru.batch_first else x.shape[0]
        width = gru.hidden_size * (1 + gru.bidirectional)
        ys.append(torch.cat([y.reshape(-1, width), x64.new_zeros(steps - length, width)]))
        lasts.append(last)
    y, last = torch.stack(ys, 0 if gru.batch_first else 1), torch.stack(lasts, 1)
    loss_of(y, last).backward()
    # Of no sequence that has a step, weights have no gradient.
    found = [torch.zeros_like(p) if p.grad is None else p.grad for p in double.parameters()]
    return found + [torch.zeros_like(t) if t.grad is None else t.grad for t in (x64, h64)], y.detach()


def hashed(tensors):
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def equal(these, those):
    return len(these) == len(those) and all(torch.equal(a, b) for a, b in zip(these, those))
