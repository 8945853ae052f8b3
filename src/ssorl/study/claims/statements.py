"""The twelve claims of the paper, each with its checks (checks.py) and its one number (numbers.py)."""

from __future__ import annotations

from ssorl.study.claims import checks, numbers
from ssorl.study.claims.judge import Claim

CLAIMS = (
    Claim(
        1,
        "SS beats the baseline at every q, on hopper and walker2d medium-expert, for each of DT, CQL and TD3BC.",
        "The difference of the mean scores of SS and baseline at each dataset, agent and q is above 0.",
        checks.claim_1,
        numbers.mean_gain("main-medium-expert"),
    ),
    Claim(
        2,
        "SS reaches the oracle as q goes to 100.",
        f"The relative gap of SS at q = 100 is below {checks.share(checks.REACHES)} for each dataset and agent.",
        checks.claim_2,
        numbers.mean_gap_at_100,
    ),
    Claim(
        3,
        "Claims 1 and 2 hold with 1, 3, 5 and 8 % labelled too.",
        "The checks of claims 1 and 2 on walker2d medium-expert at each share of labels.",
        checks.claim_3,
        numbers.mean_gain("low-label"),
    ),
    Claim(
        4,
        "SS beats the baseline, and improves with q, on medium, medium-replay, halfcheetah, the wide subsample and "
        "maze2d.",
        "For each dataset and agent, SS is above the baseline over all q together, and higher at q = 100 than at 10.",
        checks.claim_4,
        numbers.iqm_gain_elsewhere,
    ),
    Claim(
        5,
        "SS-DT is far better than DT-Joint, which is only slightly better than the baseline; SS-CQL and SS-TD3BC "
        "beat it too.",
        f"Differences of IQMs over all q: above {checks.FAR:g} points for far, between 0 and {checks.FAR:g} for "
        "slightly better.",
        checks.claim_5,
        numbers.ss_dt_minus_joint,
    ),
    Claim(
        6,
        "The inverse dynamics model of one round beats self-training in return, though its action error is only "
        "comparable at q ≤ 50 and better above.",
        "Differences of IQMs over all q and agents are above 0; the error of one round differs by less than "
        f"{checks.share(checks.COMPARABLE)} at q ≤ 50 and is lower above.",
        checks.claim_6,
        numbers.one_round_gain,
    ),
    Claim(
        7,
        "Windows with k = 1 beat k = 0 and k = 2; symmetric and asymmetric ones are alike.",
        f"Differences of IQMs over all q and agents: above 0 for better, within {checks.SAME:g} points for alike.",
        checks.claim_7,
        numbers.one_step_gain,
    ),
    Claim(
        8,
        "Better labelled data make SS much better.",
        f"Differences of IQMs between thirds are above 0, and above {checks.FAR:g} points from low to high.",
        checks.claim_8,
        numbers.high_minus_low("labelled", checks.FAR),
    ),
    Claim(
        9,
        "Better unlabelled data make SS better, and high is clearly best.",
        "Differences of IQMs between thirds are above 0.",
        checks.claim_9,
        numbers.high_minus_low("unlabelled", 0.0),
    ),
    Claim(
        10,
        "The size of the labelled data, 10 to 50 %, changes little.",
        f"Differences of IQMs to 10 % are within {checks.SAME:g} points.",
        checks.claim_10,
        numbers.half_minus_tenth_labelled,
    ),
    Claim(
        11,
        "CQL does not depend on the size of the unlabelled data; DT gets worse if the labelled trajectories are high "
        "and more unlabelled trajectories of lower quality are added.",
        f"For CQL, differences of IQMs to 10 % are within {checks.SAME:g} points; for this DT, 50 % is below 10 %.",
        checks.claim_11,
        numbers.dt_with_more_unlabelled,
    ),
    Claim(
        12,
        "TD3BC has the smallest relative gap; DT and CQL are alike.",
        f"Differences of the IQMs of relative gaps: above 0, and within {checks.share(checks.ALIKE)} for alike.",
        checks.claim_12,
        numbers.gap_minus_td3bc,
    ),
)
