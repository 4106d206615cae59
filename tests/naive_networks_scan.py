"""Slow twins of networks that read patches in order: one series and one step after the other, in float64."""

import numpy as np


def selective_scan(x, delta, A, B, C, D):
    """h_t = exp(delta_t A) h_{t-1} + delta_t B_t x_t, y_t = C_t h_t + D x_t, as it is written."""
    batch, length, width = x.shape
    y = np.zeros((batch, length, width))
    for series in range(batch):
        for channel in range(width):
            state = np.zeros(A.shape[1])
            for t in range(length):
                step, value = delta[series, t, channel], x[series, t, channel]
                for n in range(len(state)):
                    state[n] = np.exp(step * A[channel, n]) * state[n] + step * B[series, t, n] * value
                y[series, t, channel] = state @ C[series, t] + D[channel] * value
    return y


def patches(samples, patch_length, patch_stride):
    """The patches that lie wholly in one series ``(n_variates, n_samples)``, all variates of each in a row."""
    n_samples = samples.shape[1]
    if n_samples < patch_length:
        return np.pad(samples, ((0, 0), (0, patch_length - n_samples))).reshape(1, -1)
    starts = range(0, n_samples - patch_length + 1, patch_stride)
    return np.stack([samples[:, start : start + patch_length].ravel() for start in starts])


def sigmoid(values):
    return 1 / (1 + np.exp(-values))


def gru_states(tokens, weight_ih, weight_hh, bias_ih, bias_hh):
    """All states of a GRU (Cho et al., 2014, as torch writes it) over ``(n_tokens, d)``, from zeros."""
    state = np.zeros(weight_hh.shape[1])
    states = []
    for token in tokens:
        of_token = np.split(weight_ih @ token + bias_ih, 3)
        of_state = np.split(weight_hh @ state + bias_hh, 3)
        reset, update = sigmoid(of_token[0] + of_state[0]), sigmoid(of_token[1] + of_state[1])
        new = np.tanh(of_token[2] + reset * of_state[2])
        state = (1 - update) * new + update * state
        states.append(state)
    return np.array(states)


def lstm_states(tokens, weight_ih, weight_hh, bias_ih, bias_hh):
    """All states of an LSTM with forget gate (Gers et al., 2000) over ``(n_tokens, d)``, from zeros."""
    state = memory = np.zeros(weight_hh.shape[1])
    states = []
    for token in tokens:
        gates = np.split(weight_ih @ token + bias_ih + weight_hh @ state + bias_hh, 4)
        memory = sigmoid(gates[1]) * memory + sigmoid(gates[0]) * np.tanh(gates[2])
        state = sigmoid(gates[3]) * np.tanh(memory)
        states.append(state)
    return np.array(states)


def recurrent_features(samples, weights, *, n_layers, n_ways, states_of, patch_length=64, patch_stride=16):
    """The features of one bare series by a network with the parameters ``weights``: name -> array."""
    mean = samples.mean(axis=1, keepdims=True)
    levelled = (samples - mean) / np.sqrt(samples.var(axis=1, keepdims=True) + 1e-5)
    levelled = levelled * weights["patches.revin.gain"] + weights["patches.revin.offset"]
    tokens = patches(levelled, patch_length, patch_stride)
    tokens = tokens @ weights["patches.embedding.weight"].T + weights["patches.embedding.bias"]
    for layer in range(n_layers):
        read = []
        for way in range(n_ways):
            names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
            own = [weights[f"layers.{layer}.{way}.{name}"] for name in names]
            read.append(states_of(tokens, *own) if way == 0 else states_of(tokens[::-1], *own)[::-1])
        tokens = np.concatenate(read, axis=1)
    return tokens.mean(axis=0)
