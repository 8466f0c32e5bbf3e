"""From answers to judgments: nuggets, query variants, support of nuggets by chunks, and agreement of judges."""
