"""Types of the arrays that hold pictures and their indices."""

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]  # (n, size, size, 3), or one picture without n
Rows = npt.NDArray[np.int64]  # (n,)
