"""What a strong model gains over a weak one, by the form of the prompt: learned of 405 outcomes.

Written by `python -m bench.train_router` (stiffness 4); not to be edited.
"""

from router.difficulty.gain_model import Curve, GainModel

# fmt: off
GAIN_MODEL = GainModel(
    curves=(
        Curve(  # word_length
            (2.1495, 4.0153, 4.5341, 4.8424, 5.0802, 5.7131),
            (0.1123, 0.0587, -0.0092, 0.0054, -0.0551, -0.0998),
        ),
        Curve(  # short_words
            (0.0742, 0.1968, 0.2297, 0.2689, 0.351, 0.7728),
            (-0.0316, 0.025, -0.035, -0.0283, 0.024, 0.0364),
        ),
        Curve(  # function_words
            (0.0851, 0.25, 0.2982, 0.348, 0.3961, 0.5),
            (-0.0806, -0.0254, 0.0363, 0.0522, -0.0065, -0.0403),
        ),
        Curve(  # digits
            (0.0, 0.002, 0.0054, 0.0291, 0.1969),
            (-0.0083, -0.0285, -0.0168, 0.0394, 0.0462),
        ),
        Curve(  # numbers
            (0.0, 1.0, 1.585, 3.7004, 6.9959),
            (0.0038, -0.0118, 0.0019, 0.0296, -0.047),
        ),
        Curve(  # symbols
            (0.0, 0.0028, 0.011, 0.1163),
            (-0.0451, 0.0292, 0.0639, 0.0991),
        ),
        Curve(  # operators
            (0.0, 1.0, 5.0875),
            (0.0312, -0.0872, -0.107),
        ),
        Curve(  # lines
            (1.0, 2.585, 2.8074, 3.3219, 3.7004, 5.1293),
            (-0.0653, -0.0405, -0.0062, 0.0059, 0.0489, 0.0745),
        ),
        Curve(  # options
            (0.0, 3.0, 4.0, 10.0),
            (0.0125, -0.0267, -0.017, 0.0167),
        ),
    ),
    answers=(
        ("either_or", -0.1605),
        ("choice", 0.0408),
        ("code", 0.0589),
        ("text", -0.0303),
    ),
)
