import { createHash } from "node:crypto";
import { serveReach } from "@sluicewick/core/worker";

serveReach((text) => createHash("sha256").update(text).digest("hex"));
