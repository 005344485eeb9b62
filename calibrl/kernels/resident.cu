// An ensemble's answers in one persistent kernel, after the text of `on_chip.cu`. More constants:
//
//   SHARED, ORDERED               whether each network has rows of its own, and what is written are draws from its
//                                 answers; whether its rows are scattered among its agent's

// Where row r of a network lies: n rows each, of its own or all of its agent's.
__device__ __forceinline__ u64 place(const int *order, int net, int r, int n) {
  if (ORDERED) return (u64)(net / E * E) * n + (r < n ? __ldg(order + (u64)net * n + r) : 0);
  return (u64)(SHARED ? net : net / E) * n + r;
}

// Inputs of a thread's two rows, as they are; 0 beyond the last row or column.
__device__ __forceinline__ void look(float (&seen)[KS_IN][8], const float *x, const int *order, int net, int row, int n,
                                     int lane) {
  const u64 places[2] = {place(order, net, row, n), place(order, net, row + 8, n)};
#pragma unroll
  for (int s = 0; s < KS_IN; ++s)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = row + 8 * (i & 1), k = 16 * s + 8 * (i / 2) + 2 * (lane % 4);
      const float *at = x + places[i & 1] * IN + k;
      const bool inside = r < n;
      if (IN % 2 == 0) {
        float2 two = make_float2(0.0f, 0.0f);
        if (inside && k < IN) two = *reinterpret_cast<const float2 *>(at);
        seen[s][2 * i] = two.x, seen[s][2 * i + 1] = two.y;
      } else {
        seen[s][2 * i] = inside && k < IN ? at[0] : 0.0f;
        seen[s][2 * i + 1] = inside && k + 1 < IN ? at[1] : 0.0f;
      }
    }
}

// Draws of a thread's two rows, in the order of its network; they come while the tensor cores work.
__device__ __forceinline__ void prepare_draws(float (&drawn)[OUT8 / 2], const float *draws, int net, int row, int n,
                                              int lane) {
#pragma unroll
  for (int i = 0; i < OUT8 / 4; ++i) {
    const int r = row + 8 * (i & 1), k = 8 * (i / 2) + 2 * (lane % 4);
    const float *at = draws + ((u64)net * n + r) * OUT + k;
    if (OUT % 2 == 0) {
      float2 two = make_float2(0.0f, 0.0f);
      if (r < n && k < OUT) two = *reinterpret_cast<const float2 *>(at);
      drawn[2 * i] = two.x, drawn[2 * i + 1] = two.y;
    } else {
      drawn[2 * i] = r < n && k < OUT ? at[0] : 0.0f;
      drawn[2 * i + 1] = r < n && k + 1 < OUT ? at[1] : 0.0f;
    }
  }
}

// Means, and variances between soft bounds: exp of the usual two softpluses is floor + 1 / (1 / ceiling + exp(−v)).
// Where rows are shared out, draws from them instead, in the place of the means.
__device__ __forceinline__ void answer(const float (&d)[OUT8], const float (&drawn)[OUT8 / 2], const float *floor_,
                                       const float *ceiling, float *mean, float *variance, const int *order, u64 net,
                                       int row, int n, int lane) {
  constexpr int GROUPS = OUT8 / 8;
#pragma unroll
  for (int j = 0; j < GROUPS; ++j) {
    const int k = 8 * j + 2 * (lane % 4);
    float low[2] = {0.0f, 0.0f}, high[2] = {0.0f, 0.0f};
#pragma unroll
    for (int c = 0; c < 2; ++c)
      if (k + c < OUT) low[c] = __ldg(floor_ + k + c), high[c] = __ldg(ceiling + k + c);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = row + 8 * half;
      if (r >= n) continue;
      const u64 at = (ORDERED ? place(order, net, r, n) : net * n + r) * OUT + k;
      float m[2], v[2];
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        m[c] = d[4 * j + 2 * half + c];
        v[c] = low[c] + __fdividef(1.0f, high[c] + __expf(-d[4 * (j + GROUPS) + 2 * half + c]));
        if (SHARED) m[c] = fmaf(sqrtf(v[c]), drawn[4 * j + 2 * half + c], m[c]);
      }
      if (OUT % 2 == 0) {
        if (k < OUT) {
          *reinterpret_cast<float2 *>(mean + at) = make_float2(m[0], m[1]);
          if (!SHARED) *reinterpret_cast<float2 *>(variance + at) = make_float2(v[0], v[1]);
        }
      } else {
#pragma unroll
        for (int c = 0; c < 2; ++c)
          if (k + c < OUT) {
            mean[at + c] = m[c];
            if (!SHARED) variance[at + c] = v[c];
          }
      }
    }
  }
}

__device__ __forceinline__ void consume(u32 room, int first, int last, int blocks, const float *x, const float *centre,
                                        const float *spread, const float *floor_, const float *ceiling, float *mean,
                                        float *variance, const int *order, const float *draws, int n) {
  const u32 bar = room + AT_BARRIERS;
  const int group = threadIdx.x / 128, lane = threadIdx.x % 32;
  const int own = 64 * group + 16 * (threadIdx.x / 32 % 4) + lane / 4;
  const u64 to_in = operand(room), to_out = operand(room + AT_OUT);
  float d[WIDTH / 2], out[OUT8];
  float seen[KS_IN][8], drawn[OUT8 / 2];
  u32 a[KS][4], given[KS_IN][4];
  const float *middle = centre, *scale = spread, *low = floor_, *high = ceiling;
  int net = -1, nets_seen = -1;
  u32 chunk = 0;

  if (group == 1) give_turn(1);
  for (int tile = first; tile < last; ++tile) {
    const bool other = tile / blocks != net;
    if (other) {
      net = tile / blocks, ++nets_seen;
      middle = centre + net / E * (16 * KS_IN), scale = spread + net / E * (16 * KS_IN);
      low = floor_ + net / E * OUT8, high = ceiling + net / E * OUT8;
      look(seen, x, order, net, tile % blocks * 128 + own, n, lane);
      standardise(given, seen, middle, scale, lane);
      take_turn(group);
      await(bar + 8 * HAS_IN, nets_seen & 1);
      begin();
#pragma unroll
      for (int s = 0; s < KS_IN; ++s) into(d, given[s], to_in + (s * SLICE >> 4), s > 0);
      send();
      give_turn(group);
      finish<0>();
      written(d);
      bend<false>(a, d);
    }
    const bool more = tile + 1 < last && (tile + 1) / blocks == net;
    const int row = tile % blocks * 128 + own;

#pragma unroll
    for (int layer = 0; layer < LAYERS; ++layer) {
      // The next rows are asked for early: they come while the tensor cores work.
      if (layer + 1 == LAYERS)
        look(seen, x, order, net, more ? row + 128 : n, n, lane);
      multiply(d, a, room, layer, chunk, other, nets_seen, group, lane);
      // What nobody waits for is done here, while the group has nothing else to do.
      if (layer == 0 && !other) answer(out, drawn, low, high, mean, variance, order, net, row - 128, n, lane);
      if (layer + 1 == LAYERS) {
        standardise(given, seen, middle, scale, lane);
        if (SHARED) prepare_draws(drawn, draws, net, row, n, lane);
      }
      settle(d, room, chunk, lane);
      if (layer + 1 == LAYERS) bend<true>(a, d);
      else bend<false>(a, d);
    }

    // The heads, and the first layer of the next rows of this network; where there are none, of nothing.
    take_turn(group);
    if (other) await(bar + 8 * HAS_OUT, nets_seen & 1);
    begin();
#pragma unroll
    for (int s = 0; s < KS; ++s) outward(out, a[s], to_out + (s * OUT_SLICE >> 4), s > 0);
#pragma unroll
    for (int s = 0; s < KS_IN; ++s) into(d, given[s], to_in + (s * SLICE >> 4), s > 0);
    send();
    give_turn(group);
    finish<0>();
    written(out);
    written(d);
    if (more) {
      bend<false>(a, d);
    } else {
      answer(out, drawn, low, high, mean, variance, order, net, row, n, lane);
      if (lane == 0) arrive(bar + 8 * USED);
    }
  }
  if (group == 0) take_turn(0);
}

extern "C" __global__ void __launch_bounds__(384, 1)
    moments(const float *x, const float *centre, const float *spread, const char *w_in, const char *w_hidden,
            const char *w_out, const float *floor_, const float *ceiling, float *mean, float *variance,
            const int *order, const float *draws, int n, int nets) {
  extern __shared__ __align__(128) char memory[];
  const u32 room = (u32)__cvta_generic_to_shared(memory);
  const int blocks = (n + 127) / 128;
  const int first = (u64)blockIdx.x * blocks * nets / gridDim.x, last = (u64)(blockIdx.x + 1) * blocks * nets / gridDim.x;
  if (threadIdx.x == 0) {
    for (int i = 0; i < BARRIERS; ++i)
      prepare(room + AT_BARRIERS + 8 * i, i == USED || i >= USED_CHUNK ? 8 : 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (threadIdx.x >= 256) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (threadIdx.x == 256) produce(room, first, last, blocks, 1, w_in, w_hidden, w_out);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    consume(room, first, last, blocks, x, centre, spread, floor_, ceiling, mean, variance, order, draws, n);
  }
}
