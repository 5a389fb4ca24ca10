"""Real runs that are killed at random and started again, against the run that was left alone.

    python -m tests.kills                                 a thousand kills over six algorithms; runs/kills-KILL.json
    python -m tests.kills --kills 100 --signal TERM       the same with SIGTERM
    python -m tests.kills --algorithm ppo --seed 7        one trial again; its files stay if there is a fault

Starting Python and loading torch takes seconds, a run of nine small steps one. So one process loads everything, computes
nothing, has one thread, and forks a child for each run (`warm`). The child tells where it is (`watched`), the parent
draws from a seed where the blow falls (`strike`), and when the run has ended by itself its files are compared
(`evidence`).
"""
