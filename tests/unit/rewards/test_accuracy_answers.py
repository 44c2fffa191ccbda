"""Pairs of a solution and an answer, judged by hand; each answer is tried in a box and between tags."""

import numpy as np
import pytest

from mindllm.rewards import BUILTINS

BUILTINS["accuracy"].prepare()
accuracy = BUILTINS["accuracy"].function

# solution -> (right answers, wrong answers)
ANSWERS: dict[str, tuple[list[str], list[str]]] = {
    # numbers
    "42": (
        ["42", "42.0", "+42", "042", "$42$", "42.", r"\text{42}", r"\mathbf{42}", "**42**", "= 42"],
        ["24", "-42", "4.2", "4 2", "420"],
    ),
    "-7": (["-7", "−7", "- 7", "-7.0"], ["7", "-8"]),
    "0": (["0", "0.0", "-0"], ["0.0000001", "1", "", "O"]),
    "1,234": (["1234", "1,234", "1{,}234", r"1\,234", "1234.0", "1 234"], ["234", "1", "1.234", "1,235"]),
    "1,234,567.5": (["1234567.5", "1,234,567.50"], ["1234567", "1,234,568.5"]),
    "1000000": (["1,000,000", "10^6", "1e6", "1 million", r"1 \times 10^{6}"], ["1000001", "1 billion", "1"]),
    "0.0000001": (["1e-7", r"10^{-7}", ".0000001"], ["0.0000002", "0"]),
    "3.14": (["3.14", "3.140", "3,14"], ["3.1", "3.14159", "3", r"\pi"]),
    r"\frac{1}{2}": (
        ["0.5", "1/2", r"\frac12", r"\dfrac{1}{2}", ".5", r"\frac{2}{4}", "½", r"50\%"],
        ["1", "2", "12", "1/3", "0.51", "1, 2"],
    ),
    "1/3": ([r"\frac{1}{3}", "0.333333", "2/6", r"0.\overline{3}"], ["0.33", "3", "1", "1/4"]),
    r"3\frac{1}{2}": (["3.5", "7/2", "3 1/2", r"\frac{7}{2}"], ["3/2", "3", "31/2", "1.5"]),
    r"-\frac{3}{4}": (["-3/4", r"\frac{-3}{4}", "-0.75"], ["3/4", "-4/3"]),
    r"6.02 \times 10^{23}": (["6.02e23", r"6.02\cdot 10^{23}"], ["6.02", "6.02e22", "10^{23}"]),
    r"2^{10}": (["1024", "2^10"], ["10", "2", "20"]),
    r"1011_2": (["1011_2", "1011_{2}", "1011"], ["1011_3", "11", "2", "1010_2"]),
    "5.4": (["5.4", "5,4"], ["2^{2015} - 1", "54", "5, 4, 3"]),
    "9.472": (["9.472"], ["9,472", "9472"]),
    # roots, powers, constants, functions
    r"5\sqrt{2}": (
        [r"5\sqrt2", r"\sqrt{50}", "5 sqrt(2)", "5√2", r"\frac{10}{\sqrt{2}}", r"5 \cdot \sqrt{2}", "7.0710678"],
        ["5", "2", r"\sqrt{2}", "52", "7.07", r"2\sqrt{5}"],
    ),
    r"$\frac{\sqrt{3}}{2}$": (
        [r"\frac{\sqrt3}{2}", "sqrt(3)/2", r"\dfrac{\sqrt{3}}{2}", r"\sqrt{\frac{3}{4}}"],
        ["3/2", r"\frac{\sqrt{2}}{3}", "3", "2"],
    ),
    r"2\pi": (["2π", "2 pi", r"\pi \cdot 2", r"2\pi"], ["2", r"\pi", "6.28", r"4\pi", "2p"]),
    r"\frac{\pi}{6}": (["π/6", "pi/6", r"\frac{1}{6}\pi", r"30^\circ"], ["6", r"\frac{\pi}{3}", "1/6"]),
    r"\log_2 3": ([r"\frac{\ln 3}{\ln 2}", r"\log_{2}{3}"], ["3", "2", r"\log_3 2"]),
    r"\ln 2": (["ln 2", r"\ln{2}", "ln(2)"], ["2", r"\ln 3", r"\log_2 2"]),
    r"\sin x": (["sin x", "sin(x)", r"\sin(x)"], [r"\cos x", "x", "sin y"]),
    r"\infty": (["∞", r"\infty", "infinity", r"+\infty"], [r"-\infty", "0", "8"]),
    # algebra
    "2x+2": (["2(x+1)", "2x + 2", "2 + 2x", r"2\cdot(x+1)"], ["2", "2x", "2y+2", "x+1"]),
    "(y+2)^2": (["y^2+4y+4", "(2+y)^2", "(y+2)(y+2)"], ["2", "y^2+4", "(y-2)^2", "(x+2)^2"]),
    r"\frac{n(n+1)}{2}": (["n(n+1)/2", r"\frac{n^2+n}{2}"], ["n(n-1)/2", "n", "2"]),
    "x^2 - 1": (["(x-1)(x+1)", "-1 + x^2"], ["x^2", "-1", "1", "x^2+1"]),
    "2xy": (["2yx", r"2 \cdot x \cdot y"], ["2x", "2", "2xz"]),
    "3 - 8i": (["3-8i", "-8i+3", "3 - 8 i", r"3-8\mathrm{i}"], ["8", "3", "3+8i", "-8i", "8-3i"]),
    "-1": (["i^2", "-1.0"], ["i", "1"]),
    r"e^{2x}": (["e^{2x}", r"(e^x)^2"], ["2", "e^2", "e^x"]),
    # assignments, equations, relations
    "x = 3": (["3", "x=3", "$x=3$", "x = 3.0"], ["y=3", "x=4", "x"]),
    "5": (
        ["x=5", r"\text{Area} = 5", "AB = 5", "2+3=5", "f(2) = 5", "5 cm", "m+n=5"],
        ["2+2=5", "5x", "x=4", "5=x+1", "15", "5, 6", "4 or 5", "(5, 6)", "55"],
    ),
    "8": (["8"], ["2x = 8", "x^2 = 8"]),
    "y = 2x + 3": (["y=2x+3", "2x+3", "y - 2x = 3", "y = 3 + 2x"], ["3", "y = 2x - 3", "2x"]),
    "f(x) = x^2": (["x^2", "f(x)=x^{2}"], ["2", "f(x) = x^3"]),
    "x^2+y^2=1": (["x^2 + y^2 = 1", "1 = y^2 + x^2"], ["1", "x^2+y^2=2", "x^2+y^2"]),
    "x > 3": (["3 < x", "x>3", r"(3, \infty)", r"x \in (3, \infty)"], ["3", "x < 3", r"x \ge 3", r"[3,\infty)"]),
    r"x \leq -2": ([r"x \le -2", r"(-\infty, -2]", "-2 ≥ x"], ["-2", "x < -2", r"x \ge -2"]),
    "1 < x < 5": (["(1, 5)", "x \\in (1,5)", "1<x<5"], ["[1, 5]", "1", "5", "1 < x < 6"]),
    r"x \in [-2, 7]": (["[-2,7]", r"x\in[-2,7]"], ["7", "-2", "(-2,7)", "[-2,8]"]),
    # lists, tuples, intervals, sets
    "1, 2": (
        ["1,2", "1.0, 2", "2, 1", "1 and 2", "1 or 2", r"1 \text{ and } 2", r"\{1, 2\}", "1; 2"],
        ["1", "2", "1, 2, 3", "12", "1.2", "1, 3", "[1, 2]"],
    ),
    "4 or 7": (["4 or 7", "7 or 4", "4, 7", r"4\text{ or }7", "x=4 or x=7"], ["4", "7", "47", "4 or 8", "4, 7, 9"]),
    "2 and -3": (["-3, 2", "x = 2, x = -3"], ["2", "-3", "2, 3"]),
    r"$1, -\frac{1}{2}$": ([r"-\frac12, 1", "1, -0.5", "-1/2 and 1"], ["1", "-1/2", "1, 1/2"]),
    r"\pm 3": (["3, -3", r"\pm 3", "-3 or 3", "±3", r"x = \pm 3"], ["3", "-3"]),
    r"2 \pm \sqrt{3}": ([r"2+\sqrt{3}, 2-\sqrt{3}", r"2\pm\sqrt3"], [r"2+\sqrt{3}", "2", r"\pm\sqrt{3}"]),
    "x=1, y=2": (["x = 1, y = 2", "y=2, x=1", "(1, 2)", "1, 2"], ["x=2, y=1", "2, 1", "1", "x=1"]),
    "1 2 3 4": (["1 2 3 4", "1  2 3 4", "1, 2, 3, 4"], ["4 3 2 1", "4", "1234", "1 2 3"]),
    "1, 1, 2": (["1,2,1"], ["1, 2", "1, 2, 2"]),
    r"\left(2, \frac{\pi}{6}\right)": (
        [r"(2,\frac{\pi}{6})", r"(2, \pi/6)", r"\left( 2.0, \dfrac{\pi}{6} \right)"],
        ["2", r"\frac{\pi}{6}", r"(\frac{\pi}{6}, 2)", r"(2, \frac{\pi}{3})", "(2, 6)"],
    ),
    "(3, -1)": (
        ["(3,-1)", "(x, y) = (3, -1)", "3, -1", "A = (3, -1)"],
        ["(-1,3)", "3", "[3, -1]", "(3, 1)", "(3, -1, 0)"],
    ),
    "(1, 2), (3, 4)": (["(3,4), (1,2)", "(1,2) and (3,4)"], ["(1,2)", "(2,1), (3,4)", "1, 2, 3, 4"]),
    "(1, 2, 3)": (["(1,2,3)", "1, 2, 3", r"\langle 1,2,3 \rangle"], ["(1,3,2)", "3", "(1,2)"]),
    "[-3,4]": (["[-3, 4]", r"\left[-3, 4\right]", "[-3.0,4]"], ["(-3,4)", "[-3,4)", "4", "-3", "[-3, 5]", "-3, 4"]),
    "(0, 1]": (["(0,1]", r"(0, \frac{2}{2}]"], ["[0,1]", "(0,1)", "1"]),
    r"(-\infty, 1) \cup (2, \infty)": (
        [r"(2,\infty)\cup(-\infty,1)", r"(-∞, 1) ∪ (2, ∞)"],
        [r"(-\infty,1)", "1", "2", r"(-\infty,1]\cup(2,\infty)"],
    ),
    r"(-\infty, 2) \cup [3, \infty)": (
        [r"x<2 \text{ or } x \ge 3", "x >= 3 or x < 2"],
        ["x < 2 or x > 3", r"x<2 \text{ and } x \ge 3", "x < 2"],
    ),
    r"\{1, 2, 3\}": (
        [r"\{3,2,1\}", "{1, 2, 3}", "1, 2, 3", r"\left\{1,2,3\right\}", r"\lbrace 1,2,3 \rbrace"],
        [r"\{1,2\}", "(1,2,3)", "3", r"\{1,2,4\}"],
    ),
    r"\{5\}": (["5", r"\{5\}"], ["6", r"\{5, 6\}"]),
    r"\emptyset": ([r"\varnothing", "∅", r"\emptyset"], ["0", r"\{0\}"]),
    r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}": (
        [r"\begin{bmatrix}1\\2\end{bmatrix}", r"\begin{pmatrix}1.0\\2\end{pmatrix}"],
        [r"\begin{pmatrix}2\\1\end{pmatrix}", "1", "2"],
    ),
    "1:2:3": (["1:2:3", "1 : 2 : 3"], ["3:2:1", "1/6", "1:2"]),
    "2:3": (["2:3", "2 : 3", "4:6"], ["3:2", "2", "3"]),
    # quantities
    "15 kg": (
        ["15 kg", "15kg", "15", r"15\text{ kg}", r"15\,\mathrm{kg}", "15 kilograms", "15000 g", "15.0 kg"],
        ["15 g", "15 lb", "15 km", "16 kg", "15 kg, 16 kg"],
    ),
    "10": ([r"10 \text{ cm}", "10 cm", r"10\%", "10 apples", r"10^\circ", r"\$10"], ["10x", "10 or 11", "1 cm"]),
    r"12\text{ cm}^2": (
        ["12 cm^2", "12 cm²", "12", "12 square centimeters", r"12\,\mathrm{cm}^{2}", r"0.0012\text{ m}^2"],
        ["12 cm", "12 cm^3", "12 m^2", "2"],
    ),
    "5 square units": (["5", r"5\text{ square units}", "5 cm^2"], ["25", "2"]),
    r"12\sqrt{3}\text{ cm}": (
        [r"12\sqrt{3}", r"12\sqrt3 cm", r"\sqrt{432}\text{ cm}"],
        ["12", "12 cm", "3", r"12\sqrt{3}\text{ m}"],
    ),
    "60 mph": (["60 mph", "60 miles per hour", r"60\text{ mi/h}", "60"], ["60 km/h", "60 miles", "6 mph"]),
    r"9.8\text{ m/s}^2": ([r"9.8 m/s^2", r"9.8\ \mathrm{m/s^2}", "9.8"], ["9.8 m/s", "98", "2"]),
    r"30^\circ": (
        ["30", "30°", "30 degrees", r"30^{\circ}", r"\frac{\pi}{6}", r"30\text{ degrees}"],
        ["60", r"\frac{\pi}{3}", "30 cm"],
    ),
    r"25\%": (["25%", "25", "0.25", "1/4", "25 percent", r"\frac{1}{4}"], ["2.5", "0.025", "4", "75%"]),
    r"\$18.90": (["18.90", "$18.90", "18.9 dollars", r"\$18.9", "1890 cents"], ["€18.90", "18", "18.90 cents", "1890"]),
    "$5": (["5", r"\$5", "5 dollars"], ["£5", "6", "5 cents"]),
    "2 million": (["2,000,000", "2000000", r"2\text{ million}"], ["2", "2 thousand", "2 billion"]),
    "90 minutes": (["90", "1.5 hours", "1 hour 30 minutes", "90 min"], ["90 seconds", "90 hours", "1 hour", "30"]),
    "12 apples": (["12", "12 apples", "12 apple", r"12\text{ apples}"], ["12 pears", "11 apples", "1"]),
    "5th": (["5th", "5"], ["6th", "15th"]),
    "2 hours and 30 minutes": (["2.5 hours", "150 minutes", "2 hours 30 minutes"], ["2 hours", "30 minutes", "32"]),
    "5 ft, 6 ft": (["6 ft, 5 ft"], ["11 ft", "5 ft"]),
    "3.0e8 m/s": (["3e8", "300000000 m/s", "3 x 10^8 m/s", r"3\times10^8"], ["3", "3e7 m/s", "3e8 km/s", "8"]),
    "7.5 × 10^-3": (["0.0075", r"7.5 \times 10^{-3}", "7.5e-3"], ["7.5", "-3", "7500"]),
    r"1\frac{1}{2}\text{ cups}": ([r"1\frac12 cups", "1.5 cups", "3/2"], ["1 cup", "1.5 spoons", "1/2"]),
    "25 degrees Celsius": (["25 °C", r"25^\circ C", "25"], ["25 °F", "52"]),
    "3.1416": (["≈ 3.1416", r"\approx 3.1416", "about 3.1416"], ["about 3"]),
    "20 °C": (["20°C", r"20^\circ\text{C}", "20"], ["20 °F", "68"]),
    # texts with digits
    "Voyager 2": (
        ["Voyager 2", "voyager 2", r"\text{Voyager 2}", "Voyager 2."],
        ["Pioneer 2", "2", "Voyager 1", "Voyager"],
    ),
    "July 4, 1776": (
        ["July 4, 1776", "4 July 1776", "July 4th, 1776", "1776-07-04", r"\text{July 4, 1776}"],
        ["July 5, 1776", "1776", "4", "July 4, 1777", "June 4, 1776"],
    ),
    "December 25": (["25 December", "Dec 25", "December 25th"], ["25", "November 25", "December 24"]),
    "1999": (["1999"], ["1998", "May 1998"]),
    "10 Downing Street": (["10 Downing Street", "10 downing street"], ["10", "11 Downing Street", "10 Baker Street"]),
    "221B Baker Street": (["221B Baker Street"], ["221", "221B Main Street", "221A Baker Street"]),
    "Apollo 11": (["Apollo 11"], ["11", "Apollo 12", "Gemini 11"]),
    "Henry VIII": (["Henry VIII", "henry viii"], ["Henry VII", "VIII", "Edward VIII"]),
    "Route 66": (["Route 66"], ["66", "Highway 66"]),
    "10:30": (["10:30"], ["10", "30", "10:45", "1:3"]),
    "3 pm": (["3 PM", "3 pm", "3 p.m.", "3pm"], ["3 am", "4 pm"]),
    r"10\text{:}30\text{ a.m.}": (["10:30 a.m.", "10:30am", "10:30 AM"], ["10:30 pm", "10:31 am", "10"]),
    "3-2": (["3-2", "3–2", "3 - 2"], ["1", "4-3", "2-3"]),
    "50 - 60 km": (["50-60 km", "50 - 60 km"], ["-10 km", "50 km", "60 km", "40 - 50 km"]),
    "192.168.0.1": (["192.168.0.1"], ["192.168.0.2", "192.168", "192"]),
    "0x1F": (["0x1F", "0x1f"], ["0x1E", "0", "1"]),
    "555-1234": (["555-1234"], ["-679", "554-1233", "1234"]),
    "7/4/1776": (["7/4/1776"], ["1776", "4/7/1776", "7"]),
    "21st century": (["21st century", "the 21st century"], ["20th century", "21"]),
    "version 3.11": (["version 3.11"], ["3.11", "version 3.12", "version 311"]),
    "CO2": (["CO2", "CO_2", "co2"], ["CO", "2"]),
    "H2O": (["H2O", r"\text{H2O}"], ["CO2", "2", "H2"]),
    "between 2 and 3": (["between 2 and 3"], ["2", "3", "between 2 and 4"]),
    "at least 5": (["at least 5"], ["5", "at most 5"]),
    # texts
    "Paris": (["Paris", "paris", "Paris.", r"\text{Paris}", '"Paris"', " Paris "], ["London", "Pairs", "P"]),
    "listen": (["listen"], ["silent"]),
    "yes": (["Yes", "yes", "YES", r"\text{yes}"], ["no", "y"]),
    "no": (["No"], ["on", "yes"]),
    "True": (["true", "True"], ["False", "1"]),
    r"\text{even}": (["even", "Even", r"\text{even}"], ["odd", "e"]),
    "The Great Gatsby": (["the great gatsby", "Great Gatsby"], ["The Great Gatsby 2", "Gatsby"]),
    "twenty-one": (["twenty one", "Twenty-one"], ["twenty", "twenty two"]),
    "red, green, blue": (["red, green, blue", "blue, green and red"], ["red", "red, green", "red, green, yellow"]),
    "São Paulo": (["São Paulo"], ["Sao", "Rio"]),
    "北京": (["北京"], ["上海"]),
    # multiple choice
    r"\text{(B)}": (["B", "(B)", r"\text{B}", r"\textbf{(B)}", "b", "B.", r"\mathrm{B}"], ["A", "C", "(C)", "AB", "8"]),
    "B": (["B", "(B)", "b", "B) 12", "(B) 12", "B. Paris", r"\textbf{(B) } 12"], ["D", "A) B", "(C) 12", "BC", "A, B"]),
    "C. Paris": (["C", "(C)", "Paris", "C. Paris", "C) paris"], ["C. Rome", "B. Paris", "D", "Rome"]),
    "A, C": (["A, C", "C, A", "A and C"], ["A", "C", "A, B, C", "B"]),
}  # fmt: skip


@pytest.mark.parametrize("gold", ANSWERS)
def test_an_answer_is_right_where_it_says_what_the_solution_says(gold):
    rights, wrongs = ANSWERS[gold]
    expected = dict.fromkeys(rights, 1.0) | dict.fromkeys(wrongs, 0.0)
    boxed = [f"So it is \\boxed{{{answer}}}." for answer in expected]
    tagged = [f"<think>3 or 8?</think><answer>{answer}</answer>" for answer in expected]
    golds = [gold] * len(expected)
    assert dict(zip(expected, accuracy(boxed, golds), strict=True)) == expected
    assert dict(zip(expected, accuracy(tagged, golds), strict=True)) == expected
    in_a_text = [f"Adding 3 and 8, we get \\boxed{{{gold}}}."] * len(expected)
    assert dict(zip(expected, accuracy(boxed, in_a_text), strict=True)) == expected


@pytest.mark.parametrize(
    ("completion", "gold", "expected"),
    [
        # without a mark: what the sentences say
        ("The answer is Paris.", "Paris", 1.0),
        ("The correct answer is (B).", "B", 1.0),
        ("Answer: C", "B", 0.0),
        ("He has 3 apples and gets 4, so he has 7 apples.", "7", 1.0),
        ("He has 3 apples and gets 4, so he has 7 apples.", "3", 0.0),
        ("It weighs 15 kg.", "15 kg", 1.0),
        ("It weighs 15 g.", "15 kg", 0.0),
        (r"Thus $x = \sqrt{50} = 5\sqrt{2}$.", r"5\sqrt{2}", 1.0),
        (r"The length is $5$.", r"5\sqrt{2}", 0.0),
        ("The solutions are $1$ and $2$.", "1, 2", 1.0),
        ("The answer is Voyager 2.", "Voyager 2", 1.0),
        ("It is Pioneer 2.", "Voyager 2", 0.0),
        ("The capital of France is Paris.", "Paris", 1.0),
        ("The capital of France is not Paris.", "Paris", 0.0),
        ("Some say it is Paris. It is London.", "Paris", 0.0),
        ("I think it's C", "C", 1.0),
        ("**Final Answer:** 18", "18", 1.0),
        ("**Answer: 18**", "18", 1.0),
        ("12 + 60 is the sum\n#### 72", "72", 1.0),
        # what is between the tags must be the answer alone
        ("<answer>The answer is 4.</answer>", "4", 1.0),
        (r"<answer>\[ x = 4 \]</answer>", "4", 1.0),
        ("<answer>between 3 and 4</answer>", "4", 0.0),
        ("<answer>3 or 4</answer>", "4", 0.0),
        ("<answer>World War 2</answer>", "2", 0.0),
        (r"<answer>\text{June 20}</answer>", "20", 0.0),
        ("<answer>Mercury-Redstone 3</answer>", "3 hours", 0.0),
        ("<answer>He has 2 apples</answer>", "2", 1.0),
        ("<answer>The answer is 3 or 4</answer>", "4", 0.0),
        # boxes
        (r"First \boxed{1}. Then, \boxed{2}.", "2", 1.0),
        (r"First \boxed{1}. Then, \boxed{2}.", "1", 0.0),
        (r"$x = \boxed{1}$ or $x = \boxed{2}$", "1, 2", 1.0),
        (r"\boxed{\boxed{4}}", "4", 1.0),
        (r"\boxed 4", "4", 1.0),
        (r"\boxed{\text{The answer is } 4}", "4", 1.0),
        # solutions that are more than the answer
        (r"\boxed{72}", "He adds 12 and 60.\n#### 72", 1.0),
        (r"\boxed{12}", "He adds 12 and 60.\n#### 72", 0.0),
        (r"\boxed{1072}", "#### 1,072", 1.0),
        (r"\boxed{5}", "There are $5$ ways.", 1.0),
        (r"\boxed{5}", "The answer is 5", 1.0),
        (r"\boxed{451}", "It was in Fahrenheit 451, a book", 0.0),
    ],
)
def test_the_final_answer_is_found_in_a_text(completion, gold, expected):
    assert accuracy([completion], [gold]) == [expected]


@pytest.mark.parametrize(
    ("completion", "golds", "any_is_right", "all_are_required"),
    [
        (r"\boxed{6}", ["six", "6"], 1.0, 0.0),
        (r"\boxed{Six}", np.array(["six", "6"]), 1.0, 0.0),
        (r"\boxed{6}", '["six", "6"]', 1.0, 0.0),
        (r"\boxed{0.5}", r'["\\frac{1}{2}"]', 1.0, 1.0),
        (r"\boxed{9}", [9], 1.0, 1.0),
        (r"\boxed{9}", (9.0,), 1.0, 1.0),
        (r"\boxed{7}", ["six", "6"], 0.0, 0.0),
        (r"\boxed{9}", [], 0.0, 0.0),
        (r"\boxed{2, 1}", ["1", "2"], 0.0, 1.0),
        (r"\boxed{1} and \boxed{2}", [1, 2], 0.0, 1.0),
        (r"<answer>{1, 2}</answer>", ["1", "2"], 0.0, 1.0),
        (r"\boxed{1, 2, 3}", ["1", "2"], 0.0, 0.0),
        (r"\boxed{\pm 3}", ["3", "-3"], 0.0, 1.0),
        (r"\boxed{5, 1,234}", ["1,234", "5"], 0.0, 1.0),
        (r"\boxed{(3,4), (1,2)}", ["(1, 2)", "(3, 4)"], 0.0, 1.0),
        (r"\boxed{Jerry and Tom}", ["Tom", "Jerry"], 0.0, 1.0),
    ],
)
def test_a_list_holds_accepted_or_required_answers(completion, golds, any_is_right, all_are_required):
    assert accuracy([completion], [golds]) == [any_is_right]
    assert accuracy([completion], [golds], solution_list="all") == [all_are_required]


STRANGE = {
    "digits": r"\boxed{" + "9" * 5000 + "}",
    "exponents": r"\boxed{9**9**9}",
    "braces": r"\boxed{" + "{" * 300 + "}" * 300 + "}",
    "brackets": r"\boxed{" + "(" * 400 + "5" + ")" * 400 + "}",
    "closing": "}}}} $ " + "\\",
    "no arguments": r"\boxed{\frac{1}}",
    "surrogate": "\\boxed{\ud800}",
    "division": r"\boxed{\frac{0}{0}}",
    "open formulas": r"\( x " * 5000,
    "conclusions": "so it is " * 10000,
    "statements": "the answer is " * 10000,
    "tags": "<answer>" * 10000,
    "marks": "#### " * 10000,
}


@pytest.mark.parametrize("text", STRANGE)
@pytest.mark.parametrize("gold", ["5", "9" * 5000, r"\left(2, \frac{\pi}{6}\right)"], ids=["number", "digits", "tuple"])
def test_strange_text_is_a_wrong_answer(text, gold):
    expected = float(STRANGE[text] == rf"\boxed{{{gold}}}")
    assert accuracy([STRANGE[text]], [gold]) == [expected]


def test_long_texts_are_compared_word_for_word():
    text = "one word and then another, " * 100
    assert accuracy([text, text.replace(" ", "\n"), text + "more"], [text] * 3) == [1.0, 1.0, 0.0]


def test_a_solution_that_is_no_answer_is_an_error():
    with pytest.raises(
        TypeError, match=r"a solution must be a text, a number or a list of these, found \{'value': 4\}"
    ):
        accuracy(["4"], [{"value": 4}])
