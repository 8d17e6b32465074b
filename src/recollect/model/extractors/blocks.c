/* Blocks of the paper's ConvNets in training: 3×3 convolution, batch norm, 2×2 max-pooling, ReLU.

   Pictures are (n, height, width, channels) floats. Convolutions of 16 channels or more are Winograd's
   F(4×4, 3×3) (Lavin & Gray, 2016): Y = Aᵀ [(G g Gᵀ) ⊙ (Bᵀ d B)] A turns tiles of 6×6 inputs into 4×4 outputs
   with 36 products in place of 144; its gradients are those of the same formula. The caller transforms the
   filters: u = G g Gᵀ (36, in, out). The products of a position are one matrix product over all tiles of a few
   pictures, small enough for the processor's caches. Everything between two convolutions is fused into their passes.

   Callers guarantee what nothing here checks: dense float32 of the given shapes, pictures of 2×2 or more, and
   channels in multiples of 16 except for the three colours. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Channels in a vector, and rows of a matrix product whose sums the processor's registers hold. */
#ifdef __AVX512F__
enum { LANES = 16, ROWS = 12 };
#else
enum { LANES = 8, ROWS = 6 };
#endif

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint8_t bvec __attribute__((vector_size(LANES), aligned(1), may_alias));
typedef ptrdiff_t size;

#define AT(p) (*(vec *)(p))
#define FROM(p) (*(const vec *)(p))
#define INLINE static inline __attribute__((always_inline))

/* Pictures are shared among threads, a part each: from FIRST(part) to FIRST(part + 1). OpenMP's threads are
   those of torch, where torch brings the same library. */
#define EACH_PART                                                          \
    _Pragma("omp parallel for num_threads(parts) schedule(static, 1)") \
    for (size part = 0; part < parts; part++)
#define FIRST(part) (count * (part) / parts)

enum { COLOURS = 3, TILE = 4, POSITIONS = 36, FEW = 32 };

typedef struct {
    size height, width, in, out;
} Shape;

INLINE vec pick(ivec mask, vec yes, vec no) { return (vec)((mask & (ivec)yes) | (~mask & (ivec)no)); }

INLINE void add_vector(double *sums, vec values)
{
    for (int i = 0; i < LANES; i++) sums[i] += values[i];
}

/* c = [c +] a (rows, depth) b (depth, columns), of one or two `vectors` of columns; a[r, k] lies at
   r · row + k · step. The first matrix may consist of several `pieces` of this depth, `apart` from each other. */
INLINE void product(const int rows, const int vectors, const int add, const int pieces, size apart,
                    const float *start, size row, size step, const float *b, size b_row, float *c, size c_row,
                    size depth)
{
    vec sum[12][2];
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) sum[r][v] = add ? FROM(c + r * c_row + LANES * v) : (vec){0};
    for (int i = 0; i < pieces; i++) {
        const float *a = start + i * apart;
        for (size k = 0; k < depth; k++, a += step, b += b_row) {
            vec right[2];
#pragma GCC unroll 2
            for (int v = 0; v < vectors; v++) right[v] = FROM(b + LANES * v);
#pragma GCC unroll 12
            for (int r = 0; r < rows; r++) {
                const float left = a[r * row];
#pragma GCC unroll 2
                for (int v = 0; v < vectors; v++) sum[r][v] += left * right[v];
            }
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) AT(c + r * c_row + LANES * v) = sum[r][v];
}

/* The same for as many rows as there are. */
INLINE void product_of_rows(const int vectors, const int add, const int pieces, size apart, size rows,
                            const float *a, size row, size step, const float *b, size b_row, float *c,
                            size c_row, size depth)
{
    for (; rows >= ROWS; rows -= ROWS, a += ROWS * row, c += ROWS * c_row)
        product(ROWS, vectors, add, pieces, apart, a, row, step, b, b_row, c, c_row, depth);
    for (; rows >= 4; rows -= 4, a += 4 * row, c += 4 * c_row)
        product(4, vectors, add, pieces, apart, a, row, step, b, b_row, c, c_row, depth);
    for (; rows > 0; rows--, a += row, c += c_row)
        product(1, vectors, add, pieces, apart, a, row, step, b, b_row, c, c_row, depth);
}

/* The same for as many columns: c (m, n), b (depth, n), both dense. */
INLINE void matrix_product(const int add, const int pieces, size apart, size m, size n, const float *a, size row,
                           size step, const float *b, float *c, size depth)
{
    size column = 0;
    for (; column + 2 * LANES <= n; column += 2 * LANES)
        product_of_rows(2, add, pieces, apart, m, a, row, step, b + column, n, c + column, n, depth);
    if (column < n) product_of_rows(1, add, pieces, apart, m, a, row, step, b + column, n, c + column, n, depth);
}

/* c (m, n) = a (m, k) b (k, n), all dense. */
static void multiply(size m, size n, size k, const float *a, const float *b, float *c)
{
    matrix_product(0, 1, 0, m, n, a, k, 1, b, c, k);
}

/* c (m, n) += aᵀ b of a (k, m) and b (k, n). */
static void add_transposed(size m, size n, size k, const float *a, const float *b, float *c)
{
    matrix_product(1, 1, 0, m, n, a, 1, m, b, c, k);
}

/* Winograd's transforms of one line: Bᵀ, its transpose, Aᵀ and its transpose. */
INLINE void b_transposed(const vec d[6], vec v[6])
{
    v[0] = 4.0f * d[0] - 5.0f * d[2] + d[4];
    vec even = d[4] - 4.0f * d[2], odd = d[3] - 4.0f * d[1];
    v[1] = even + odd, v[2] = even - odd;
    even = d[4] - d[2], odd = 2.0f * (d[3] - d[1]);
    v[3] = even + odd, v[4] = even - odd;
    v[5] = 4.0f * d[1] - 5.0f * d[3] + d[5];
}

INLINE void b_plain(const vec v[6], vec d[6])
{
    const vec sum12 = v[1] + v[2], less12 = v[2] - v[1], sum34 = v[3] + v[4], less34 = v[4] - v[3];
    d[0] = 4.0f * v[0];
    d[1] = 4.0f * (less12 + v[5]) + 2.0f * less34;
    d[2] = -5.0f * v[0] - 4.0f * sum12 - sum34;
    d[3] = -less12 - 2.0f * less34 - 5.0f * v[5];
    d[4] = v[0] + sum12 + sum34;
    d[5] = v[5];
}

INLINE void a_transposed(const vec m[6], vec y[4])
{
    const vec sum12 = m[1] + m[2], less12 = m[1] - m[2], sum34 = m[3] + m[4], less34 = m[3] - m[4];
    y[0] = m[0] + sum12 + sum34;
    y[1] = less12 + 2.0f * less34;
    y[2] = sum12 + 4.0f * sum34;
    y[3] = less12 + 8.0f * less34 + m[5];
}

INLINE void a_plain(const vec y[4], vec m[6])
{
    vec even = y[0] + y[2], odd = y[1] + y[3];
    m[0] = y[0], m[1] = even + odd, m[2] = even - odd;
    even = y[0] + 4.0f * y[2], odd = 2.0f * y[1] + 8.0f * y[3];
    m[3] = even + odd, m[4] = even - odd, m[5] = y[3];
}

static size tiles_along(size length) { return (length + TILE - 1) / TILE; }

static size tiles_of(Shape s) { return tiles_along(s.height) * tiles_along(s.width); }

/* How many pictures go through a convolution together. */
static size together(Shape s)
{
    const size tiles = tiles_of(s);
    return tiles < 96 ? 96 / tiles : 1;
}

static size padded(Shape s, size channels)
{
    return (TILE * tiles_along(s.height) + 2) * (TILE * tiles_along(s.width) + 2) * channels;
}

/* Floats of working memory that a call needs. */
size scratch_floats(size height, size width, size in, size out)
{
    const Shape s = {height, width, in, out};
    const size step = in == COLOURS ? 1 : together(s), wider = in > out ? in : out, tiles = step * tiles_of(s);
    const size own = in == COLOURS ? (height + 2) * (width + 2) * COLOURS + 2 * width * out
                             : padded(s, wider) + POSITIONS * tiles * (2 * wider + in);
    return step * height * width * out + own;
}

/* Copy a picture into one with a border of zeros, above and to the left one wide. */
static void pad(const float *x, float *to, size height, size width, size channels, size rows, size columns)
{
    memset(to, 0, sizeof(float) * columns * channels);
    for (size r = 0; r < height; r++) {
        float *line = to + (r + 1) * columns * channels;
        memset(line, 0, sizeof(float) * channels);
        memcpy(line + channels, x + r * width * channels, sizeof(float) * width * channels);
        memset(line + (width + 1) * channels, 0, sizeof(float) * (columns - width - 1) * channels);
    }
    memset(to + (height + 1) * columns * channels, 0, sizeof(float) * (rows - height - 1) * columns * channels);
}

/* v (36, tiles, channels) from `first` on = Bᵀ d B of the windows of a padded picture. */
static void windows(const float *x, float *v, Shape s, size channels, size first, size tiles)
{
    const size down = tiles_along(s.height), along = tiles_along(s.width), row = (TILE * along + 2) * channels;
    for (size r = 0; r < down; r++)
        for (size c = 0; c < along; c++) {
            const float *corner = x + TILE * r * row + TILE * c * channels;
            float *to = v + (first + r * along + c) * channels;
            for (size k = 0; k < channels; k += LANES) {
                vec half[6][6];
                for (int j = 0; j < 6; j++) {
                    vec line[6], out[6];
                    for (int i = 0; i < 6; i++) line[i] = FROM(corner + i * row + j * channels + k);
                    b_transposed(line, out);
                    for (int i = 0; i < 6; i++) half[i][j] = out[i];
                }
                for (int i = 0; i < 6; i++) {
                    vec out[6];
                    b_transposed(half[i], out);
                    for (int j = 0; j < 6; j++) AT(to + (6 * i + j) * tiles * channels + k) = out[j];
                }
            }
        }
}

/* Add B v Bᵀ of every window to a padded picture of zeros: the gradient of `windows`. */
static void add_windows(const float *v, float *x, Shape s, size channels, size first, size tiles)
{
    const size down = tiles_along(s.height), along = tiles_along(s.width), row = (TILE * along + 2) * channels;
    for (size r = 0; r < down; r++)
        for (size c = 0; c < along; c++) {
            float *corner = x + TILE * r * row + TILE * c * channels;
            const float *from = v + (first + r * along + c) * channels;
            for (size k = 0; k < channels; k += LANES) {
                vec half[6][6];
                for (int i = 0; i < 6; i++) {
                    vec line[6];
                    for (int j = 0; j < 6; j++) line[j] = FROM(from + (6 * i + j) * tiles * channels + k);
                    b_plain(line, half[i]);
                }
                for (int j = 0; j < 6; j++) {
                    vec line[6], out[6];
                    for (int i = 0; i < 6; i++) line[i] = half[i][j];
                    b_plain(line, out);
                    for (int i = 0; i < 6; i++) AT(corner + i * row + j * channels + k) += out[i];
                }
            }
        }
}

/* y (height, width, out) = Aᵀ m A of a picture's tiles. */
static void outputs(const float *m, float *y, Shape s, size first, size tiles)
{
    const size down = tiles_along(s.height), along = tiles_along(s.width);
    for (size r = 0; r < down; r++)
        for (size c = 0; c < along; c++) {
            const float *from = m + (first + r * along + c) * s.out;
            const size high = s.height - TILE * r < TILE ? s.height - TILE * r : TILE;
            const size wide = s.width - TILE * c < TILE ? s.width - TILE * c : TILE;
            for (size k = 0; k < s.out; k += LANES) {
                vec half[4][6];
                for (int j = 0; j < 6; j++) {
                    vec line[6], out[4];
                    for (int i = 0; i < 6; i++) line[i] = FROM(from + (6 * i + j) * tiles * s.out + k);
                    a_transposed(line, out);
                    for (int i = 0; i < 4; i++) half[i][j] = out[i];
                }
                for (int i = 0; i < 4; i++) {
                    vec out[4];
                    a_transposed(half[i], out);
                    for (int j = 0; j < 4; j++)
                        if (i < high && j < wide)
                            AT(y + ((TILE * r + i) * s.width + TILE * c + j) * s.out + k) = out[j];
                }
            }
        }
}

/* m (36, tiles, out) = A y Aᵀ of the tiles of a picture that is padded below and to the right. */
static void back_outputs(const float *y, float *m, Shape s, size first, size tiles)
{
    const size down = tiles_along(s.height), along = tiles_along(s.width), row = TILE * along * s.out;
    for (size r = 0; r < down; r++)
        for (size c = 0; c < along; c++) {
            const float *corner = y + TILE * r * row + TILE * c * s.out;
            float *to = m + (first + r * along + c) * s.out;
            for (size k = 0; k < s.out; k += LANES) {
                vec half[6][4];
                for (int j = 0; j < 4; j++) {
                    vec line[4], out[6];
                    for (int i = 0; i < 4; i++) line[i] = FROM(corner + i * row + j * s.out + k);
                    a_plain(line, out);
                    for (int i = 0; i < 6; i++) half[i][j] = out[i];
                }
                for (int i = 0; i < 6; i++) {
                    vec out[6];
                    a_plain(half[i], out);
                    for (int j = 0; j < 6; j++) AT(to + (6 * i + j) * tiles * s.out + k) = out[j];
                }
            }
        }
}

/* Add the sums of the values and of their squares, by channel. */
static void add_moments(const float *y, size pixels, size channels, double *sums)
{
    for (size from = 0; from < pixels; from += FEW) {
        const size until = from + FEW < pixels ? from + FEW : pixels;
        for (size k = 0; k < channels; k += LANES) {
            vec sum = {0}, square = {0};
            for (size p = from; p < until; p++) {
                const vec value = FROM(y + p * channels + k);
                sum += value, square += value * value;
            }
            add_vector(sums + k, sum), add_vector(sums + channels + k, square);
        }
    }
}

/* One picture with three channels: y = w * x, with filters w (27, out). */
static void convolve_colours(const float *x, const float *w, float *y, Shape s, float *scratch)
{
    const size row = (s.width + 2) * 3;
    pad(x, scratch, s.height, s.width, 3, s.height + 2, s.width + 2);
    for (size r = 0; r < s.height; r++)
        matrix_product(0, 3, row, s.width, s.out, scratch + r * row, 3, 1, w, y + r * s.width * s.out, 9);
}

static void convolve(const float *x, const float *u, float *y, Shape s, size count, float *scratch)
{
    const size tiles = count * tiles_of(s), columns = TILE * tiles_along(s.width) + 2;
    float *v = scratch + padded(s, s.in), *m = v + POSITIONS * tiles * s.in;
    for (size n = 0; n < count; n++) {
        pad(x + n * s.height * s.width * s.in, scratch, s.height, s.width, s.in,
            TILE * tiles_along(s.height) + 2, columns);
        windows(scratch, v, s, s.in, n * tiles_of(s), tiles);
    }
    for (size p = 0; p < POSITIONS; p++)
        multiply(tiles, s.out, s.in, v + p * tiles * s.in, u + p * s.in * s.out, m + p * tiles * s.out);
    for (size n = 0; n < count; n++)
        outputs(m, y + n * s.height * s.width * s.out, s, n * tiles_of(s), tiles);
}

/* y = u * x, and the sums (parts, 2, out) of y and y² by channel. */
void convolution(const float *x, const float *u, float *y, double *sums, size count, size height, size width,
                 size in, size out, size parts, float *scratch)
{
    const Shape s = {height, width, in, out};
    const size pixels = height * width, step = in == COLOURS ? 1 : together(s);
    EACH_PART
    {
        float *own = scratch + part * scratch_floats(height, width, in, out);
        const size last = FIRST(part + 1);
        for (size n = FIRST(part); n < last; n += step) {
            const size now = n + step < last ? step : last - n;
            const float *from = x + n * pixels * in;
            float *to = y + n * pixels * out;
            if (in == COLOURS) convolve_colours(from, u, to, s, own);
            else convolve(from, u, to, s, now, own);
            add_moments(to, now * pixels, out, sums + part * 2 * out);
        }
    }
}

/* Normalise a picture, take the largest of 2×2, apply ReLU. Where the gradient will be wanted (`keep`), `most`
   is the value of y that was taken and `place` says where it was. */
INLINE void pool(const float *y, const float *scale, const float *shift, float *most, uint8_t *place, float *z,
                 size height, size width, size channels, int relu, const int keep)
{
    const size down = height / 2, along = width / 2;
    for (size r = 0; r < down; r++)
        for (size c = 0; c < along; c++) {
            const float *from = y + (2 * r * width + 2 * c) * channels;
            const size to = (r * along + c) * channels;
            for (size k = 0; k < channels; k += LANES) {
                const vec by = FROM(scale + k), plus = FROM(shift + k);
                vec value = FROM(from + k), best = value * by + plus;
                ivec where = {0};
                for (int i = 1; i < 4; i++) {
                    const vec other = FROM(from + ((i >> 1) * width + (i & 1)) * channels + k);
                    const vec scaled = other * by + plus;
                    const ivec larger = ~(scaled <= best) & (best == best); /* NaN wins, as in torch */
                    best = pick(larger, scaled, best);
                    if (keep) value = pick(larger, other, value), where = (larger & i) | (~larger & where);
                }
                if (relu) best = pick(best <= 0.0f, (vec){0}, best);
                AT(z + to + k) = best;
                if (keep) {
                    AT(most + to + k) = value;
                    *(bvec *)(place + to + k) = __builtin_convertvector(where, bvec);
                }
            }
        }
}

void pooling(const float *y, const float *scale, const float *shift, float *most, uint8_t *place, float *z,
             size count, size height, size width, size channels, int relu, size parts)
{
    const size pixels = height * width * channels, pooled = (height / 2) * (width / 2) * channels;
    EACH_PART
    for (size n = FIRST(part); n < FIRST(part + 1); n++)
        pool(y + n * pixels, scale, shift, most + n * pooled, place + n * pooled, z + n * pooled, height, width,
             channels, relu, 1);
}

/* A whole block whose batch norm is known: z = ReLU of the largest of 2×2 of scale · (u * x) + shift. */
void block(const float *x, const float *u, const float *scale, const float *shift, float *z, size count,
           size height, size width, size in, size out, int relu, size parts, float *scratch)
{
    const Shape s = {height, width, in, out};
    const size pixels = height * width, pooled = (height / 2) * (width / 2) * out;
    const size step = in == COLOURS ? 1 : together(s);
    EACH_PART
    {
        float *y = scratch + part * scratch_floats(height, width, in, out), *own = y + step * pixels * out;
        const size last = FIRST(part + 1);
        for (size n = FIRST(part); n < last; n += step) {
            const size now = n + step < last ? step : last - n;
            if (in == COLOURS) convolve_colours(x + n * pixels * in, u, y, s, own);
            else convolve(x + n * pixels * in, u, y, s, now, own);
            for (size i = 0; i < now; i++)
                pool(y + i * pixels * out, scale, shift, NULL, NULL, z + (n + i) * pooled, height, width, out,
                     relu, 0);
        }
    }
}

/* Sums (parts, 2, channels) of the gradient that passes ReLU, and of its product with y, over `count` pixels. */
void back_moments(const float *gradient, const float *most, const float *scale, const float *shift,
                  double *sums, size count, size channels, int relu, size parts)
{
    EACH_PART
    for (size from = FIRST(part), last = FIRST(part + 1); from < last; from += FEW) {
        const size until = from + FEW < last ? from + FEW : last;
        double *own = sums + part * 2 * channels;
        for (size k = 0; k < channels; k += LANES) {
            const vec by = FROM(scale + k), plus = FROM(shift + k);
            vec sum = {0}, with_y = {0};
            for (size p = from; p < until; p++) {
                const vec value = FROM(most + p * channels + k);
                vec passed = FROM(gradient + p * channels + k);
                if (relu) passed = pick(value * by + plus <= 0.0f, (vec){0}, passed);
                sum += passed, with_y += passed * value;
            }
            add_vector(own + k, sum), add_vector(own + channels + k, with_y);
        }
    }
}

typedef struct {
    const float *gradient, *most; /* (height / 2, width / 2, out): of the pooled picture */
    const uint8_t *place;
    const float *scale, *shift; /* as in `pooling` */
    /* dy = by_gradient · gradient, at its place, + by_y · y + constant */
    const float *by_gradient, *by_y, *constant;
    int relu;
} Back;

/* The gradient of rows r and r + 1 (if there is one) of y. */
static void back_rows(const Back *back, const float *y, float *dy, size dy_row, Shape s, size r)
{
    const size rows = r + 1 < s.height ? 2 : 1, along = rows == 2 ? s.width / 2 : 0, channels = s.out;
    for (size c = 0; c < along; c++) {
        const size from = (r / 2 * along + c) * channels;
        for (size k = 0; k < channels; k += LANES) {
            const vec by_y = FROM(back->by_y + k), constant = FROM(back->constant + k);
            const ivec place = __builtin_convertvector(*(const bvec *)(back->place + from + k), ivec);
            vec gradient = FROM(back->gradient + from + k) * FROM(back->by_gradient + k);
            if (back->relu) {
                const vec value = FROM(back->most + from + k) * FROM(back->scale + k) + FROM(back->shift + k);
                gradient = pick(value <= 0.0f, (vec){0}, gradient);
            }
            for (int i = 0; i < 4; i++) {
                const size row = i >> 1, column = 2 * c + (i & 1);
                AT(dy + row * dy_row + column * channels + k) =
                    FROM(y + ((r + row) * s.width + column) * channels + k) * by_y + constant +
                    pick(place == i, gradient, (vec){0});
            }
        }
    }
    for (size row = 0; row < rows; row++)
        for (size c = 2 * along; c < s.width; c++)
            for (size k = 0; k < channels; k += LANES)
                AT(dy + row * dy_row + c * channels + k) =
                    FROM(y + ((r + row) * s.width + c) * channels + k) * FROM(back->by_y + k) +
                    FROM(back->constant + k);
}

/* One picture with three channels: dw (27, out) += the gradient of its filters. */
static void back_colours(const Back *back, const float *x, const float *y, float *dw, Shape s, float *scratch)
{
    const size row = (s.width + 2) * 3;
    float *dy = scratch + (s.height + 2) * row;
    pad(x, scratch, s.height, s.width, 3, s.height + 2, s.width + 2);
    for (size r = 0; r < s.height; r += 2) {
        back_rows(back, y, dy, s.width * s.out, s, r);
        for (size i = 0; i < 6; i++)
            if (r + i / 3 < s.height)
                for (size k = 0; k < s.out; k += LANES)
                    product(9, 1, 1, 1, 0, scratch + (r + i / 3 + i % 3) * row, 1, 3,
                            dy + i / 3 * s.width * s.out + k, s.out, dw + 9 * (i % 3) * s.out + k, s.out,
                            s.width);
    }
}

static Back picture(Back back, size n, Shape s)
{
    const size pooled = n * (s.height / 2) * (s.width / 2) * s.out;
    back.gradient += pooled, back.most += pooled, back.place += pooled;
    return back;
}

static void back_convolve(const Back *back, const float *x, const float *u_transposed, const float *y, float *dx,
                          float *du, Shape s, size count, float *scratch)
{
    const size each = tiles_of(s), tiles = count * each, pixels = s.height * s.width;
    const size rows = TILE * tiles_along(s.height), columns = TILE * tiles_along(s.width);
    float *v = scratch + padded(s, s.in > s.out ? s.in : s.out), *dm = v + POSITIONS * tiles * s.in;
    float *dv = dm + POSITIONS * tiles * s.out;
    for (size n = 0; n < count; n++) {
        pad(x + n * pixels * s.in, scratch, s.height, s.width, s.in, rows + 2, columns + 2);
        windows(scratch, v, s, s.in, n * each, tiles);
        if (columns > s.width || rows > s.height) memset(scratch, 0, sizeof(float) * rows * columns * s.out);
        const Back one = picture(*back, n, s);
        for (size r = 0; r < s.height; r += 2)
            back_rows(&one, y + n * pixels * s.out, scratch + r * columns * s.out, columns * s.out, s, r);
        back_outputs(scratch, dm, s, n * each, tiles);
    }
    for (size p = 0; p < POSITIONS; p++) {
        const float *left = v + p * tiles * s.in, *right = dm + p * tiles * s.out;
        add_transposed(s.in, s.out, tiles, left, right, du + p * s.in * s.out);
        multiply(tiles, s.in, s.out, right, u_transposed + p * s.in * s.out, dv + p * tiles * s.in);
    }
    for (size n = 0; n < count; n++) {
        memset(scratch, 0, sizeof(float) * padded(s, s.in));
        add_windows(dv, scratch, s, s.in, n * each, tiles);
        for (size r = 0; r < s.height; r++)
            memcpy(dx + (n * pixels + r * s.width) * s.in, scratch + ((r + 1) * (columns + 2) + 1) * s.in,
                   sizeof(float) * s.width * s.in);
    }
}

/* Gradients of the pictures (except for colours) and, added to du (parts, …), of the filters. `channels` (5, out)
   are scale, shift, by_gradient, by_y and constant. */
void back_convolution(const float *x, const float *u_transposed, const float *y, const float *most,
                      const uint8_t *place, const float *gradient, const float *channels, float *dx, float *du,
                      size count, size height, size width, size in, size out, int relu, size parts,
                      float *scratch)
{
    const Shape s = {height, width, in, out};
    const size pixels = height * width, step = in == COLOURS ? 1 : together(s);
    const size filters = (in == COLOURS ? 9 : POSITIONS) * in * out;
    const Back back = {gradient, most, place, channels, channels + out, channels + 2 * out,
                       channels + 3 * out, channels + 4 * out, relu};
    EACH_PART
    {
        float *own = scratch + part * scratch_floats(height, width, in, out), *changes = du + part * filters;
        const size last = FIRST(part + 1);
        for (size n = FIRST(part); n < last; n += step) {
            const size now = n + step < last ? step : last - n;
            const Back these = picture(back, n, s);
            if (in == COLOURS) back_colours(&these, x + n * pixels * 3, y + n * pixels * out, changes, s, own);
            else
                back_convolve(&these, x + n * pixels * in, u_transposed, y + n * pixels * out,
                              dx + n * pixels * in, changes, s, now, own);
        }
    }
}
