// Whole imagined futures in one persistent kernel, after the text of `on_chip.cu`: a particle stays with its network, and
// on the chip, from the first step to the last. More constants and functions:
//
//   OBS, SEEN, ACT                numbers of an observation, of what networks see of one, and of an action
//   look_at, go_on, pay           the world's functions of one particle: what networks see of an observation; the next
//                                 observation from one and a forecast; what a step earned
//   keep                          how far an observation is inside the safe set
//
// The tensor cores' numbers of a row lie with four threads, and those hold two rows each. Two of the four carry on the
// world of the first row, the others that of the second; rows change hands through shared memory, warp by warp.

constexpr int STRIDE = (IN > OUT ? IN : OUT) | 1;  // of a row in shared memory: odd, so that rows lie in all banks

// Forecasts of a thread's two rows become draws, between their limits, where the four threads of a row find them.
__device__ __forceinline__ void draw(float *exchange, const float (&d)[OUT8], const float (&drawn)[OUT8 / 2],
                                     const float *floor_, const float *ceiling, int lane) {
  constexpr int GROUPS = OUT8 / 8;
#pragma unroll
  for (int j = 0; j < GROUPS; ++j)
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int k = 8 * j + 2 * (lane % 4) + c;
      if (k >= OUT) continue;
      const float low = __ldg(floor_ + k), high = __ldg(ceiling + k);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int at = 4 * j + 2 * half + c;
        float sigma = low + __fdividef(1.0f, high + __expf(-d[at + 4 * GROUPS]));
        asm("sqrt.approx.f32 %0, %0;" : "+f"(sigma));
        exchange[(lane / 4 + 8 * half) * STRIDE + k] = fmaf(sigma, drawn[at], d[at]);
      }
    }
}

// What networks are asked about a thread's two rows, from where the threads that carry these left it.
__device__ __forceinline__ void collect(float (&seen)[KS_IN][8], const float *exchange, int lane) {
#pragma unroll
  for (int s = 0; s < KS_IN; ++s)
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int k = 16 * s + 8 * (i / 4) + 2 * (lane % 4) + i % 2;
      seen[s][i] = k < IN ? exchange[(lane / 4 + 8 * (i / 2 % 2)) * STRIDE + k] : 0.0f;
    }
}

// Chance of a thread's two rows, where they begin at these places; 0 beyond the last row or column.
__device__ __forceinline__ void look_up_chance(float (&drawn)[OUT8 / 2], const float *noise, const u64 (&places)[2],
                                               const bool (&there)[2], int lane) {
#pragma unroll
  for (int i = 0; i < OUT8 / 2; ++i) {
    const int k = 8 * (i / 4) + 2 * (lane % 4) + i % 2;
    drawn[i] = there[i / 2 % 2] && k < OUT ? __ldg(noise + places[i / 2 % 2] + k) : 0.0f;
  }
}

// Where errors go on: around what is expected of them, and as wide as is new in them.
__device__ __forceinline__ void go_on_from(float (&drawn)[OUT8 / 2], const float *middle, const float *width,
                                           float furthest, int lane) {
#pragma unroll
  for (int i = 0; i < OUT8 / 2; ++i) {
    const int k = 8 * (i / 4) + 2 * (lane % 4) + i % 2;
    if (k >= OUT) continue;
    drawn[i] = fminf(fmaxf(fmaf(__ldg(width + k), drawn[i], __ldg(middle + k)), -furthest), furthest);
  }
}

// Calibrated draws, from an agent's tables.
__device__ __forceinline__ void recalibrate(float (&drawn)[OUT8 / 2], const float *lines, int cells, float per_unit,
                                            int lane) {
#pragma unroll
  for (int i = 0; i < OUT8 / 2; ++i) {
    const int k = 8 * (i / 4) + 2 * (lane % 4) + i % 2, cell = (int)fmaf(drawn[i], per_unit, 0.5f * cells);
    if (k >= OUT) continue;
    const float2 line = __ldg(reinterpret_cast<const float2 *>(lines) + k * cells + min(max(cell, 0), cells - 1));
    drawn[i] = fmaf(line.y, drawn[i], line.x);
  }
}

__device__ __forceinline__ void take_action(float (&action)[ACT], const float *from) {
#pragma unroll
  for (int i = 0; i < ACT; ++i) action[i] = __ldg(from + i);
}

// What every tile is imagined by, and where it is written: `rollout.py` packs it in this order.
struct Given {
  // (g, OBS), (g, n / share, steps, ACT), and (g, steps, n · E, OUT) with its strides.
  const float *observation, *plans, *noise;
  // Where errors go on, (nets, steps, OUT); tables, (g, OUT, cells, 2); limits of forecasts, (g, OUT); or none.
  const float *middle, *width, *lines, *lowest, *highest;
  const float *centre, *spread;
  const char *w_in, *w_hidden, *w_out;
  const float *floor, *ceiling;
  float *total, *broken;  // (nets, n)
  int n, share, steps, nets, noise_agent, noise_step, cells;
  float per_unit, furthest;
};

__device__ __forceinline__ void imagine(u32 room, float *exchange, int first, int last, int blocks, const Given &by) {
  const int n = by.n, share = by.share, steps = by.steps;
  const u32 bar = room + AT_BARRIERS;
  const int group = threadIdx.x / 128, lane = threadIdx.x % 32;
  const int own = 64 * group + 16 * (threadIdx.x / 32 % 4) + lane / 4;
  const u64 to_in = operand(room), to_out = operand(room + AT_OUT);
  exchange += threadIdx.x / 32 * 16 * STRIDE;
  float *mine = exchange + (lane / 4 + 8 * (lane & 1)) * STRIDE;
  float d[WIDTH / 2], out[OUT8], drawn[OUT8 / 2], state[OBS], action[ACT], coming[ACT];
  u32 a[KS][4];
  int net = -1, nets_seen = -1;
  u32 chunk = 0;

  if (TURNS && group == 1) give_turn(1);
  for (int tile = first; tile < last; ++tile) {
    const bool other = tile / blocks != net;
    if (other) net = tile / blocks, ++nets_seen;
    const int agent = net / E, row = tile % blocks * 128 + own, particle = row + 8 * (lane & 1);
    const bool there[2] = {row < n, row + 8 < n}, carried = particle < n;
    const float *plan = by.plans + ((u64)agent * (n / share) + (carried ? particle / share : 0)) * steps * ACT;
    u64 places[2];  // of a plan's particles, each network has its share
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = row + 8 * half, place = (r / share * E + net % E) * share + r % share;
      places[half] = (u64)agent * by.noise_agent + (u64)place * OUT;
    }
    float earned = 0.0f, left = 0.0f;
#pragma unroll
    for (int i = 0; i < OBS; ++i) state[i] = __ldg(by.observation + agent * OBS + i);
    take_action(coming, plan);

    for (int step = 0; step < steps; ++step) {
      const bool fresh = other && step == 0;
      {
        float some[SEEN], seen[KS_IN][8];
        u32 given[KS_IN][4];
        look_at(state, some);
        if (lane % 4 < 2) {
#pragma unroll
          for (int i = 0; i < SEEN; ++i) mine[i] = some[i];
#pragma unroll
          for (int i = 0; i < ACT; ++i) mine[SEEN + i] = coming[i];
        }
#pragma unroll
        for (int i = 0; i < ACT; ++i) action[i] = coming[i];
        __syncwarp();
        collect(seen, exchange, lane);
        standardise(given, seen, by.centre + agent * (16 * KS_IN), by.spread + agent * (16 * KS_IN), lane);
        if (fresh) await(bar + 8 * HAS_IN, nets_seen & 1);
        begin();
#pragma unroll
        for (int s = 0; s < KS_IN; ++s) into(d, given[s], to_in + (s * SLICE >> 4), s > 0);
        send();
        finish<0>();
        written(d);
        bend<false>(a, d);
      }
#pragma unroll
      for (int layer = 0; layer < LAYERS; ++layer) {
        multiply(d, a, room, layer, chunk, fresh, nets_seen, group, lane);
        // What is needed next comes while the tensor cores work.
        if (layer + 2 == LAYERS || LAYERS == 1)
          look_up_chance(drawn, by.noise + (u64)step * by.noise_step, places, there, lane);
        if (layer + 1 == LAYERS) {
          const int at = (net * steps + step) * OUT;
          if (by.middle) go_on_from(drawn, by.middle + at, by.width + at, by.furthest, lane);
          if (by.lines) recalibrate(drawn, by.lines + (u64)agent * OUT * by.cells * 2, by.cells, by.per_unit, lane);
          if (step + 1 < steps) take_action(coming, plan + (step + 1) * ACT);
        }
        settle(d, room, chunk, lane);
        if (layer + 1 == LAYERS) bend<true>(a, d);
        else bend<false>(a, d);
      }
      if (fresh) await(bar + 8 * HAS_OUT, nets_seen & 1);
      begin();
#pragma unroll
      for (int s = 0; s < KS; ++s) outward(out, a[s], to_out + (s * OUT_SLICE >> 4), s > 0);
      send();
      finish<0>();
      written(out);
      draw(exchange, out, drawn, by.floor + agent * OUT8, by.ceiling + agent * OUT8, lane);
      __syncwarp();
      float target[OUT], after[OBS], one[1];
#pragma unroll
      for (int i = 0; i < OUT; ++i) target[i] = mine[i];
      if (by.lowest) {
#pragma unroll
        for (int i = 0; i < OUT; ++i) {
          const float low = __ldg(by.lowest + agent * OUT + i), high = __ldg(by.highest + agent * OUT + i);
          // Not minimum and maximum, which would hide a NaN.
          target[i] = target[i] > high ? high : (target[i] < low ? low : target[i]);
        }
      }
      __syncwarp();
      go_on(state, target, after);
      pay(state, action, after, one);
      earned += one[0];
      keep(after, one);
      left = one[0] <= 0.0f ? 1.0f : left;
#pragma unroll
      for (int i = 0; i < OBS; ++i) state[i] = after[i];
    }
    if (lane % 4 < 2 && carried) by.total[(u64)net * n + particle] = earned, by.broken[(u64)net * n + particle] = left;
    if (tile + 1 == last || (tile + 1) / blocks != net) {
      if (lane == 0) arrive(bar + 8 * USED);
    }
  }
  if (TURNS && group == 0) take_turn(0);
}

extern "C" __global__ void __launch_bounds__(384, 1) rollout(const __grid_constant__ Given by) {
  extern __shared__ __align__(128) char memory[];
  const u32 room = (u32)__cvta_generic_to_shared(memory);
  const int blocks = (by.n + 127) / 128, tiles = blocks * by.nets;
  const int first = (u64)blockIdx.x * tiles / gridDim.x, last = (u64)(blockIdx.x + 1) * tiles / gridDim.x;
  if (threadIdx.x == 0) {
    for (int i = 0; i < BARRIERS; ++i)
      prepare(room + AT_BARRIERS + 8 * i, i == USED || i >= USED_CHUNK ? 8 : 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (threadIdx.x >= 256) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (threadIdx.x == 256) produce(room, first, last, blocks, by.steps, by.w_in, by.w_hidden, by.w_out);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    imagine(room, (float *)(memory + AT_REST), first, last, blocks, by);
  }
}
