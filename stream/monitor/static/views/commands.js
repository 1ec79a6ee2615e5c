// Commands that views without data suggest.

export const ADD_SOURCE = `sotto source add '{"source": "vitals", "kind": "values", "neighbors": "add-remove",
                   "epsilon": 4, "sensitivity": 1}'`;
export const OPEN_STREAM = `sotto stream open '{"stream": "ward-7", "source": "vitals", "epsilon": 1,
                    "mechanism": {"kind": "above_threshold", "threshold": 100, "cutoff": 3}}'`;
export const SERVE = "sotto serve worker\nsotto serve budget";
