/* The inner loops of bitmatrix.py. Compiled for the machine that they run on. */
#include <stdint.h>
#include <string.h>

enum { LONG = 64, LINE = 4, TILE = 16, SIDE = 4 };

typedef uint64_t line_t __attribute__((vector_size(LINE * sizeof(uint64_t))));

/* Transpose LINE blocks of 64 words of 64 bits side by side. Swap the off-diagonal quarters of a block, then those of each
   quarter, and so on. */
static void transpose_blocks(line_t blocks[LONG]) {
  uint64_t mask = 0x00000000FFFFFFFF;
  for (int half = LONG / 2; half; half /= 2, mask ^= mask << half)
    for (int base = 0; base < LONG; base += 2 * half)
      for (int r = base; r < base + half; r++) {
        line_t changed = ((blocks[r] >> half) ^ blocks[r + half]) & mask;
        blocks[r + half] ^= changed;
        blocks[r] ^= changed << half;
      }
}

/* Set bit i of found[q] to bit q of rows[order[i]], for words first ... last - 1 of every row of found. order[i] = -1 stands
   for a row of zeros. Rows of found are `wide` words long. */
void transpose(const uint64_t *rows, int64_t words, const int64_t *order, int64_t wide, int64_t first, int64_t last,
               uint64_t *found) {
  for (int64_t i0 = first; i0 < last; i0 += LINE) {
    int64_t line = i0 + LINE < last ? LINE : last - i0;
    for (int64_t w = 0; w < words; w++) {
      line_t blocks[LONG] = {0};
      for (int64_t i = 0; i < line; i++)
        for (int r = 0; r < LONG; r++) {
          int64_t row = order[(i0 + i) * LONG + r];
          blocks[r][i] = row < 0 ? 0 : rows[row * words + w];
        }
      transpose_blocks(blocks);
      for (int q = 0; q < LONG; q++) memcpy(found + (w * LONG + q) * wide + i0, blocks + q, line * sizeof(uint64_t));
    }
  }
}

/* total[j][m] += sum over segments s of weight[s] * (bits of segment s in which row j of keys and row m of targets differ).
   Segment s ends before word end[s]. A tile of rows and columns stays in the caches, and SIDE columns share each word read
   of a key. */
void differing(const uint64_t *keys, int64_t first, int64_t last, const uint64_t *targets, int64_t columns, int64_t words,
               const int64_t *end, const double *weight, int64_t segments, double *total) {
  for (int64_t j0 = first; j0 < last; j0 += TILE)
    for (int64_t m0 = 0; m0 < columns; m0 += TILE)
      for (int64_t s = 0, begin = 0; s < segments; begin = end[s++])
        for (int64_t j = j0; j < j0 + TILE && j < last; j++) {
          const uint64_t *x = keys + j * words;
          double *row = total + j * columns;
          int64_t m = m0, m1 = m0 + TILE < columns ? m0 + TILE : columns;
          for (; m + SIDE <= m1; m += SIDE) {
            const uint64_t *b = targets + m * words;
            int64_t count[SIDE] = {0};
            for (int64_t w = begin; w < end[s]; w++)
              for (int c = 0; c < SIDE; c++) count[c] += __builtin_popcountll(x[w] ^ b[c * words + w]);
            for (int c = 0; c < SIDE; c++) row[m + c] += weight[s] * (double)count[c];
          }
          for (; m < m1; m++) {
            int64_t count = 0;
            for (int64_t w = begin; w < end[s]; w++) count += __builtin_popcountll(x[w] ^ targets[m * words + w]);
            row[m] += weight[s] * (double)count;
          }
        }
}
