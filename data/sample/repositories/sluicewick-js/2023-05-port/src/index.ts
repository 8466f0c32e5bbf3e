export { createFlow, Flow, type FlowOptions, type FlowReport } from "./flow.js";
export { type Reach, type ReachOptions, DROP } from "./reach.js";
export { Weir, type WeirOptions } from "./weir.js";
export { SluicewickError, SpillLimitError, WeirClosedError } from "./errors.js";
