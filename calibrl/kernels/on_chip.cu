// What kernels for Hopper GPUs share that keep an ensemble's weights on the chip: `resident.cu`, an ensemble's answers, and
// `rollout.cu`, whole imagined futures. `resident.py` packs the networks, and puts in front of this text the sizes as
// constants and one function for each shape of product:
//
//   E, IN, OUT                    networks of an agent, inputs, outputs
//   KS_IN, KS, LAYERS, OUT8       slices of 16 inputs (first layer; others), hidden products, outputs padded to 8
//   KEPT, SLOTS                   slices of a layer that stay on the chip, places of the ring for the others
//   TURNS                         whether the two groups of warps multiply by turns
//   into, onward, outward         d (64 × units) = or += a (64 × 16, registers) · b (16 × units, shared memory)
//
// Two groups of four warps take 64 rows each through the network, by turns: while one multiplies, the other bends by
// swish what it multiplied before. A third group fetches the weights that do not stay.

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
constexpr int AT_REST = AT_BARRIERS + 8 * BARRIERS;

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

// Fetch the weights for tiles [first, last), of which each goes through its network so many times.
__device__ __forceinline__ void produce(u32 room, int first, int last, int blocks, int times, const char *w_in,
                                        const char *w_hidden, const char *w_out) {
  const u32 bar = room + AT_BARRIERS;
  int net = -1, seen = 0;
  u32 chunk = 0;
  for (int tile = first; tile < last; ++tile)
    for (int time = 0; time < times; ++time) {
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

// A hidden product of a group's rows, when it is its turn: slices that stay, then those that come through the ring,
// whose first place is `chunk`. fresh: whether the network's weights are only just coming.
__device__ __forceinline__ void multiply(float (&d)[WIDTH / 2], const u32 (&a)[KS][4], u32 room, int layer, u32 chunk,
                                         bool fresh, int nets_seen, int group, int lane) {
  const u32 bar = room + AT_BARRIERS;
  const u64 to_kept = operand(room + AT_KEPT), to_ring = operand(room + AT_RING);
  if (TURNS) take_turn(group);
  if (fresh && KEPT) await(bar + 8 * (HAS_KEPT + layer), nets_seen & 1);
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
  if (TURNS) give_turn(group);
#pragma unroll
  for (int c = 0; c + 1 < CHUNKS; ++c) {
    if (c + 2 < CHUNKS) finish<2>();
    else finish<1>();
    if (lane == 0) arrive(bar + 8 * (USED_CHUNK + (chunk + c) % RING));
  }
}

// Wait for that product; its last place of the ring is free then.
__device__ __forceinline__ void settle(float (&d)[WIDTH / 2], u32 room, u32 &chunk, int lane) {
  finish<0>();
  if (CHUNKS && lane == 0) arrive(room + AT_BARRIERS + 8 * (USED_CHUNK + (chunk + CHUNKS - 1) % RING));
  chunk += CHUNKS;
  written(d);
}

// Inputs of a thread's two rows, standardised, in float16; columns from IN on are 1, for the biases.
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
