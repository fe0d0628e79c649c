# SPDX-License-Identifier: Apache-2.0
"""Section 14: training a GRU in floats, one direction of one layer. Numbers are float32; every operation
is one of floats.py. Gate order u, r, n."""
import math

from .floats import F32, add, divide, fma, multiply, subtract
from .rounding import rint

CHUNK = 256
LOG2E, LN2_HIGH, LN2_LOW = (float.fromhex(c) for c in ("0x1.715476p+0", "-0x1.62e4p-1", "-0x1.7f7d1cp-20"))
EXP = [float.fromhex(c) for c in ("0x1.6a2434p-10", "0x1.1239e2p-7", "0x1.5558f2p-5", "0x1.555492p-3",
                                  "0x1.fffffcp-2")]
TANH = [float.fromhex(c) for c in ("-0x1.76ac3p-8", "0x1.5256dcp-6", "-0x1.b8444ap-5", "0x1.110768p-3",
                                   "-0x1.555534p-2")]


def plus(a, b):
    return add(a, b, F32)


def minus(a, b):
    return subtract(a, b, F32)


def times(a, b):
    return multiply(a, b, F32)


def chain(a, b):
    S = 0.0
    for first in range(0, len(a), CHUNK):
        s = 0.0
        for p, q in zip(a[first:first + CHUNK], b[first:first + CHUNK]):
            s = fma(p, q, s)
        S = plus(S, s)
    return S


def total(a):
    return chain(a, [1.0] * len(a))


def polynomial(coefficients, v):
    p = coefficients[0]
    for c in coefficients[1:]:
        p = fma(p, v, c)
    return p


def E(x):
    """Near e^x for x <= 0; NaN stays."""
    if math.isnan(x):
        return x
    x = max(x, -87.0)
    n = rint(times(x, LOG2E))
    r = fma(float(n), LN2_HIGH, x)
    r = fma(float(n), LN2_LOW, r)
    one = plus(1.0, fma(times(r, r), polynomial(EXP, r), r))
    return math.ldexp(one, n)  # exact: n is -126 at least, and the result normal


def sigmoid(x):
    if math.isnan(x):
        return x
    z = E(-abs(x))
    return divide(z if x < 0 else 1.0, plus(1.0, z), F32)


def tanh(x):
    """Of -0: +0, as the operations give it."""
    if math.isnan(x):
        return x
    if abs(x) < 0.625:
        s = times(x, x)
        return fma(times(x, s), polynomial(TANH, s), x)
    t = E(times(-2.0, abs(x)))
    return math.copysign(divide(minus(1.0, t), plus(1.0, t), F32), x)


class Run:
    """A forward pass: its inputs; y [T][N][H], h_last [N][H]; u, r, n, q [T][N], each a list of H numbers, or
    None past the length."""

    def __init__(self, x, h0, lengths, mask, H):
        self.x, self.mask = x, mask
        self.T, self.N = len(x), len(x[0])
        self.h0 = [[0.0] * H for _ in range(self.N)] if h0 is None else h0
        self.lengths = [self.T] * self.N if lengths is None else lengths
        self.y = [[[0.0] * H for _ in range(self.N)] for _ in range(self.T)]
        self.u, self.r, self.n, self.q = ([[None] * self.N for _ in range(self.T)] for _ in range(4))
        self.h_last = [None] * self.N

    def keeps(self, t, b, i):
        """The mask has 0: the unit keeps its state."""
        return self.mask is not None and self.mask[t][b][i] == 0

    def valid(self):
        """The steps within their lengths, n fastest."""
        return [(t, b) for t in range(self.T) for b in range(self.N) if t < self.lengths[b]]


class Direction:
    """W [3H][C], R [3H][H], bw and br [3H]."""

    def __init__(self, W, R, bw, br, reverse=False):
        self.W, self.R, self.bw, self.br, self.reverse = W, R, bw, br, reverse
        self.C, self.H = len(W[0]), len(R[0])
        assert len(W) == len(R) == len(bw) == len(br) == 3 * self.H

    def order(self, length):
        """The steps of a sequence as the forward takes them."""
        return range(length)[::-1] if self.reverse else range(length)

    def before(self, run, t, b):
        """The state before a step."""
        first = self.order(run.lengths[b])[0]
        return run.h0[b] if t == first else run.y[t + 1 if self.reverse else t - 1][b]

    def forward(self, x, h0=None, lengths=None, mask=None):
        """x [T][N][C], h0 [N][H], lengths [N], mask [T][N][H] -> Run"""
        run = Run(x, h0, lengths, mask, self.H)
        for b in range(run.N):
            h = list(run.h0[b])
            for t in self.order(run.lengths[b]):
                h = self.step(run, t, b, h)
                run.y[t][b] = h
            run.h_last[b] = h
        return run

    def step(self, run, t, b, h):
        H, x = self.H, run.x[t][b]
        ih = [plus(chain(row, x), bias) for row, bias in zip(self.W, self.bw)]
        hh = [plus(chain(row, h), bias) for row, bias in zip(self.R, self.br)]
        u = [sigmoid(plus(ih[i], hh[i])) for i in range(H)]
        r = [sigmoid(plus(ih[H + i], hh[H + i])) for i in range(H)]
        q = hh[2 * H:]
        n = [tanh(fma(r[i], q[i], ih[2 * H + i])) for i in range(H)]
        run.u[t][b], run.r[t][b], run.n[t][b], run.q[t][b] = u, r, n, q
        return [h[i] if run.keeps(t, b, i) else fma(u[i], minus(h[i], n[i]), n[i]) for i in range(H)]

    def backward(self, run, dy, dh_last=None):
        """dy [T][N][H], dh_last [N][H] -> dict of dx, dW, dR, dbw, dbr, dh0"""
        H, rows = self.H, range(3 * self.H)
        Gx, Gh = {}, {}  # of the steps within their lengths
        dh0 = []
        columns = [[self.R[c][k] for c in rows] for k in range(H)]
        for b in range(run.N):
            g = [0.0] * H if dh_last is None else list(dh_last[b])
            for t in self.order(run.lengths[b])[::-1]:
                Gx[t, b], Gh[t, b], g = self.step_back(run, t, b, dy[t][b], g, columns)
            dh0.append(g)
        dx = [[[0.0] * self.C for _ in range(run.N)] for _ in range(run.T)]
        columns = [[self.W[c][k] for c in rows] for k in range(self.C)]
        for t, b in Gx:
            dx[t][b] = [chain(Gx[t, b], column) for column in columns]
        steps = run.valid()
        gx = [[Gx[s][c] for s in steps] for c in rows]
        gh = [[Gh[s][c] for s in steps] for c in rows]
        xs = [[run.x[t][b][k] for t, b in steps] for k in range(self.C)]
        hs = [self.before(run, t, b) for t, b in steps]
        hs = [[h[k] for h in hs] for k in range(H)]
        return {"dx": dx, "dW": [[chain(a, v) for v in xs] for a in gx], "dR": [[chain(a, v) for v in hs] for a in gh],
                "dbw": [total(a) for a in gx], "dbr": [total(a) for a in gh], "dh0": dh0}

    def step_back(self, run, t, b, dy, g, columns):
        """-> Gx, Gh [3H] and the next g"""
        h = self.before(run, t, b)
        du, dr, da, dq, back = [], [], [], [], []
        for i in range(self.H):
            u, r, n, q = run.u[t][b][i], run.r[t][b][i], run.n[t][b][i], run.q[t][b][i]
            kept = run.keeps(t, b, i)
            d = plus(dy[i], g[i])
            e = 0.0 if kept else d
            da.append(times(fma(-n, n, 1.0), times(minus(1.0, u), e)))
            dq.append(times(r, da[i]))
            dr.append(times(times(r, minus(1.0, r)), times(q, da[i])))
            du.append(times(times(u, minus(1.0, u)), times(minus(h[i], n), e)))
            back.append(d if kept else times(u, d))
        Gh = du + dr + dq
        return du + dr + da, Gh, [plus(back[k], chain(Gh, columns[k])) for k in range(self.H)]
