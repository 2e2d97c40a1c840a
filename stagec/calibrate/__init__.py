"""Making device files from measurements: `python -m stagec.calibrate --help`.

Wants the extra `calibrate` (scipy; pyarrow to read aiconfigurator's files). `measured.py` says what a measurement is, `folder.py`,
`aiconfigurator.py` and `traces.py` read some, `fit.py` makes tables of them, `report.py` says how well they hold.
"""
