// All layers of an ensemble in one persistent kernel for Hopper GPUs. `resident.py` says what it computes, packs the
// networks, and puts in front of this text the sizes as constants and one function for each shape of product:
//
//   E, IN, OUT                    networks of an agent, inputs, outputs
//   SHARED, ORDERED               whether each network has rows of its own, and what is written are draws from its
//                                 answers; whether its rows are scattered among its agent's
//   KS_IN, KS, LAYERS, OUT8       slices of 16 inputs (first layer; others), hidden products, outputs padded to 8
//   KEPT, SLOTS                   slices of a layer that stay on the chip, places of the ring for the others
//   into, onward, outward         d (64 × units) = or += a (64 × 16, registers) · b (16 × units, shared memory)
//
// Two groups of four warps take 64 rows each through the network and work in turns: while one multiplies, the other
// bends by swish what it multiplied before. A third group fetches the weights that do not stay.

typedef unsigned int u32;
typedef unsigned long long u64;

constexpr int WIDTH = 16 * KS, SLICE = 32 * WIDTH, OUT_SLICE = 32 * 2 * OUT8;
constexpr int SLOT = 2, CHUNKS = (KS - KEPT) / SLOT;  // slices in a place; places that a layer needs
constexpr u32 RING = SLOTS ? SLOTS : 1;
constexpr float LARGEST = 60000.0f;

// Shared memory, in bytes from its beginning.
constexpr int AT_KEPT = KS_IN * SLICE;
constexpr int AT_RING = AT_KEPT + LAYERS * KEPT * SLICE;
constexpr int AT_OUT = AT_RING + SLOTS * SLOT * SLICE;
constexpr int AT_BARRIERS = AT_OUT + KS * OUT_SLICE;
// Barriers: the first layer has come, the last has, hidden ones have; all of a network was used; ring: come, used.
constexpr int HAS_IN = 0, HAS_OUT = 1, HAS_KEPT = 2, USED = 2 + LAYERS, HAS_CHUNK = USED + 1;
constexpr int USED_CHUNK = HAS_CHUNK + SLOTS, BARRIERS = USED_CHUNK + SLOTS;

__device__ __forceinline__ void prepare(u32 barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void await(u32 barrier, u32 parity) {
  asm volatile(
      "{ .reg .pred p; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @p bra DONE; bra AGAIN; DONE: }"
      ::"r"(barrier), "r"(parity) : "memory");
}

// Start copying; the barrier turns when all bytes have come.
__device__ __forceinline__ void fetch(u32 room, const char *source, u32 bytes, u32 barrier) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               ::"r"(room), "l"(source), "r"(bytes), "r"(barrier) : "memory");
}

// Turns: a group waits for its own, and gives the other its. Barrier 0 is __syncthreads.
__device__ __forceinline__ void take_turn(int group) { asm volatile("bar.sync %0, 256;" ::"r"(1 + group) : "memory"); }
__device__ __forceinline__ void give_turn(int group) { asm volatile("bar.arrive %0, 256;" ::"r"(2 - group) : "memory"); }

__device__ __forceinline__ void begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void send() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT> __device__ __forceinline__ void finish() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}
// Numbers that tensor cores wrote are not read before this line.
template <int N> __device__ __forceinline__ void written(float (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// What tensor cores are told of 16 inputs × units at an address: pieces of 8 units × 8 inputs, 128 bytes each, next
// to each other first along the inputs, then along the units.
__device__ __forceinline__ u64 operand(u32 room) {
  return (u64)((room & 0x3FFFF) >> 4) | ((u64)(128 >> 4) << 16) | ((u64)(256 >> 4) << 32);
}

// swish(2u) = u + u · tanh(u) of two neighbours, in 16 bits each.
template <bool HALF> __device__ __forceinline__ u32 swish(float u, float v) {
  float s, t;
  u32 both;
  asm("tanh.approx.f32 %0, %1;" : "=f"(s) : "f"(u));
  asm("tanh.approx.f32 %0, %1;" : "=f"(t) : "f"(v));
  s = fmaf(u, s, u), t = fmaf(v, t, v);
  if (HALF) asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(t), "f"(s));
  else asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(t), "f"(s));
  return both;
}

// Sums of a layer become the left operand of the next: each thread already holds the numbers it needs.
template <bool HALF> __device__ __forceinline__ void bend(u32 (&a)[KS][4], const float (&d)[WIDTH / 2]) {
#pragma unroll
  for (int s = 0; s < KS; ++s)
#pragma unroll
    for (int i = 0; i < 4; ++i) a[s][i] = swish<HALF>(d[8 * s + 2 * i], d[8 * s + 2 * i + 1]);
}

__device__ __forceinline__ void produce(u32 room, int first, int last, int blocks, const char *w_in,
                                        const char *w_hidden, const char *w_out) {
  const u32 bar = room + AT_BARRIERS;
  int net = -1, seen = 0;
  u32 chunk = 0;
  for (int tile = first; tile < last; ++tile) {
    const bool other = tile / blocks != net;
    if (other) {
      net = tile / blocks;
      if (seen) await(bar + 8 * USED, (seen - 1) & 1);
      ++seen;
      fetch(room, w_in + (u64)net * KS_IN * SLICE, KS_IN * SLICE, bar + 8 * HAS_IN);
    }
    for (int layer = 0; layer < LAYERS; ++layer) {
      const char *w = w_hidden + ((u64)net * LAYERS + layer) * KS * SLICE;
      if (other && KEPT)
        fetch(room + AT_KEPT + layer * KEPT * SLICE, w, KEPT * SLICE, bar + 8 * (HAS_KEPT + layer));
      for (int c = 0; c < CHUNKS; ++c, ++chunk) {
        const u32 slot = chunk % RING, turn = chunk / RING;
        if (turn) await(bar + 8 * (USED_CHUNK + slot), (turn - 1) & 1);
        fetch(room + AT_RING + slot * SLOT * SLICE, w + (KEPT + c * SLOT) * SLICE, SLOT * SLICE,
              bar + 8 * (HAS_CHUNK + slot));
      }
    }
    if (other) fetch(room + AT_OUT, w_out + (u64)net * KS * OUT_SLICE, KS * OUT_SLICE, bar + 8 * HAS_OUT);
  }
}

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

// The same, standardised, in float16; columns from IN on are 1, for the biases.
__device__ __forceinline__ void standardise(u32 (&a)[KS_IN][4], const float (&seen)[KS_IN][8], const float *centre,
                                            const float *spread, int lane) {
#pragma unroll
  for (int s = 0; s < KS_IN; ++s)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float two[2];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int k = 16 * s + 8 * (i / 2) + 2 * (lane % 4) + j;
        float u = 1.0f;
        if (k < IN) {
          u = (seen[s][2 * i + j] - __ldg(centre + k)) * __ldg(spread + k);
          // Not minimum and maximum, which would hide a NaN: a lost particle must stay lost.
          u = u > LARGEST ? LARGEST : (u < -LARGEST ? -LARGEST : u);
        }
        two[j] = u;
      }
      asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(a[s][i]) : "f"(two[1]), "f"(two[0]));
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
  const u64 to_in = operand(room), to_kept = operand(room + AT_KEPT), to_ring = operand(room + AT_RING);
  const u64 to_out = operand(room + AT_OUT);
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
      take_turn(group);
      if (other && KEPT) await(bar + 8 * (HAS_KEPT + layer), nets_seen & 1);
      begin();
#pragma unroll
      for (int s = 0; s < KEPT; ++s)
        onward(d, a[s], to_kept + ((layer * KEPT + s) * SLICE >> 4), s > 0);
      if (KEPT) send();
#pragma unroll
      for (int c = 0; c < CHUNKS; ++c) {
        const u32 slot = (chunk + c) % RING;
        await(bar + 8 * (HAS_CHUNK + slot), (chunk + c) / RING & 1);
#pragma unroll
        for (int s = 0; s < SLOT; ++s)
          onward(d, a[KEPT + c * SLOT + s], to_ring + ((slot * SLOT + s) * SLICE >> 4), KEPT + c + s > 0);
        send();
      }
      give_turn(group);
#pragma unroll
      for (int c = 0; c + 1 < CHUNKS; ++c) {
        if (c + 2 < CHUNKS) finish<2>();
        else finish<1>();
        if (lane == 0) arrive(bar + 8 * (USED_CHUNK + (chunk + c) % RING));
      }
      // What nobody waits for is done here, while the group has nothing else to do.
      if (layer == 0 && !other) answer(out, drawn, low, high, mean, variance, order, net, row - 128, n, lane);
      if (layer + 1 == LAYERS) {
        standardise(given, seen, middle, scale, lane);
        if (SHARED) prepare_draws(drawn, draws, net, row, n, lane);
      }
      finish<0>();
      if (CHUNKS && lane == 0) arrive(bar + 8 * (USED_CHUNK + (chunk + CHUNKS - 1) % RING));
      chunk += CHUNKS;
      written(d);
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
    if (threadIdx.x == 256) produce(room, first, last, blocks, w_in, w_hidden, w_out);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    consume(room, first, last, blocks, x, centre, spread, floor_, ceiling, mean, variance, order, draws, n);
  }
}
