"""The selective scan on a GPU: one program takes some channels of one series, a stretch of time at once.

    x, delta (batch, length, width), A (width, n_states), B, C (batch, length, n_states), D (width,) -> y, and back

A stretch is `STEPS` steps of `CHANNELS` channels; for one state after the other it is scanned in parallel, from
the state that the stretch before left behind. Those states are kept and lead the gradient back. Sums over channels
go to a place of their own for each program and are added up afterwards, so two runs give the same bits.

Next: selective_scan_triton.py launches them.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def"

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]


@triton.jit
def combine(kept, state, kept_next, state_next):
    """First one stretch, then the next: what is kept through both, and what they leave behind."""
    return kept * kept_next, state * kept_next + state_next


@triton.jit
def forward(
    x, delta, A, B, C, D,
    y,  # out
    states,  # out, (batch, n_stretches + 1, n_states, width): before each stretch, and after the last
    length, width, n_states,
    STEPS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """y, and the states between stretches. The states before the first stretch are zeros already."""
    series = tl.program_id(0).to(tl.int64)
    n_stretches = tl.cdiv(length, STEPS)
    steps, channels = tl.arange(0, STEPS), tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    is_channel = channels < width
    past = tl.load(D + channels, mask=is_channel, other=0.0)
    for stretch in range(n_stretches):
        times = stretch * STEPS + steps
        is_time = times < length
        mask = is_time[:, None] & is_channel[None, :]
        at = (series * length + times[:, None]) * width + channels[None, :]
        step, value = tl.load(delta + at, mask=mask, other=0.0), tl.load(x + at, mask=mask, other=0.0)
        enters = step * value
        read = past[None, :] * value
        for n in range(n_states):
            at_scalar = (series * length + times) * n_states + n
            entry = tl.load(B + at_scalar, mask=is_time, other=0.0)
            reading = tl.load(C + at_scalar, mask=is_time, other=0.0)
            decay = tl.load(A + channels * n_states + n, mask=is_channel, other=0.0)
            carried = states + ((series * (n_stretches + 1) + stretch) * n_states + n) * width + channels
            before = tl.load(carried, mask=is_channel, other=0.0)
            kept = tl.exp(step * decay[None, :])  # 1 behind the end, where nothing enters: the state stays
            kept, now = tl.associative_scan((kept, enters * entry[:, None]), 0, combine)
            now += kept * before[None, :]
            read += now * reading[:, None]
            after = tl.sum(tl.where(steps[:, None] == STEPS - 1, now, 0.0), 0)
            tl.store(carried + n_states * width, after, mask=is_channel)
        tl.store(y + at, read, mask=mask)
        tl.debug_barrier()  # other threads of this program may read what was stored


@triton.jit
def backward(
    x, delta, A, B, C, D, grad_y, states,
    grad_x, grad_delta,  # out
    grad_A,  # out, (batch, n_stretches, n_states, width)
    grad_B, grad_C,  # out, (batch, n_parts, length, n_states)
    grad_D,  # out, (batch, width)
    carries,  # (batch, n_stretches + 1, n_states, width): exp(delta A) g of each first step; zeros after the last
    length, width, n_states,
    STEPS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """With g_t the gradient of h_t: g_t = C_t dy_t + exp(delta_{t+1} A) g_{t+1}, and all else follows from it."""
    series, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    n_stretches = tl.cdiv(length, STEPS)
    steps, channels = tl.arange(0, STEPS), part * CHANNELS + tl.arange(0, CHANNELS)
    is_channel = channels < width
    past = tl.load(D + channels, mask=is_channel, other=0.0)
    of_past = tl.zeros([CHANNELS], tl.float32)
    for turn in range(n_stretches):
        stretch = n_stretches - 1 - turn
        times = stretch * STEPS + steps
        is_time = times < length
        mask = is_time[:, None] & is_channel[None, :]
        at = (series * length + times[:, None]) * width + channels[None, :]
        step, value = tl.load(delta + at, mask=mask, other=0.0), tl.load(x + at, mask=mask, other=0.0)
        given = tl.load(grad_y + at, mask=mask, other=0.0)
        # the step after each one of this stretch; after its last one comes the carry, which has its factor already
        has_next = (steps[:, None] < STEPS - 1) & (times[:, None] + 1 < length) & is_channel[None, :]
        step_next = tl.load(delta + at + width, mask=has_next, other=0.0)
        enters = step * value
        of_step, of_enters = tl.zeros([STEPS, CHANNELS], tl.float32), tl.zeros([STEPS, CHANNELS], tl.float32)
        for n in range(n_states):
            at_scalar = (series * length + times) * n_states + n
            entry = tl.load(B + at_scalar, mask=is_time, other=0.0)
            reading = tl.load(C + at_scalar, mask=is_time, other=0.0)
            decay = tl.load(A + channels * n_states + n, mask=is_channel, other=0.0)
            place = ((series * (n_stretches + 1) + stretch) * n_states + n) * width + channels
            before = tl.load(states + place, mask=is_channel, other=0.0)
            carry = tl.load(carries + place + n_states * width, mask=is_channel, other=0.0)
            kept = tl.exp(step * decay[None, :])
            new = enters * entry[:, None]
            kept_so_far, now = tl.associative_scan((kept, new), 0, combine)
            now += kept_so_far * before[None, :]
            kept_next = tl.exp(step_next * decay[None, :])
            kept_from_end, of_state = tl.associative_scan(
                (kept_next, given * reading[:, None]), 0, combine, reverse=True
            )
            of_state += kept_from_end * carry[None, :]
            of_power = of_state * (now - new)  # by delta A: now - new is what was kept of the state before
            of_step += of_power * decay[None, :]
            of_enters += of_state * entry[:, None]
            onwards = tl.sum(tl.where(steps[:, None] == 0, of_state * kept, 0.0), 0)
            tl.store(carries + place, onwards, mask=is_channel)
            of_decay = grad_A + ((series * n_stretches + stretch) * n_states + n) * width + channels
            tl.store(of_decay, tl.sum(of_power * step, 0), mask=is_channel)
            at_part = ((series * tl.num_programs(1) + part) * length + times) * n_states + n
            tl.store(grad_B + at_part, tl.sum(of_state * enters, 1), mask=is_time)
            tl.store(grad_C + at_part, tl.sum(given * now, 1), mask=is_time)
        tl.store(grad_delta + at, of_step + of_enters * value, mask=mask)
        tl.store(grad_x + at, of_enters * step + given * past[None, :], mask=mask)
        of_past += tl.sum(given * value, 0)
        tl.debug_barrier()  # other threads of this program may read what was stored
    tl.store(grad_D + series * width + channels, of_past, mask=is_channel)
