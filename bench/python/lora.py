#!/usr/bin/env python3
"""Times steps of LoRA on a model in Hugging Face's layout with transformers and peft, and prints what it took as JSON.

    lora.py FOLDER [--tokens 512] [--batch 2] [--steps 3] [--threads 1] [--checkpointing]

Float32, AdamW of the adapters, r 8 on q_proj and v_proj. rss_bytes is the most memory that the process had.
"""

import argparse
import json
import resource
import time

import peft
import torch
import transformers

a = argparse.ArgumentParser()
a.add_argument("folder")
for name, value in ("tokens", 512), ("batch", 2), ("steps", 3), ("threads", 1):
    a.add_argument("--" + name, type=int, default=value)
a.add_argument("--checkpointing", action="store_true")
a = a.parse_args()
torch.set_num_threads(a.threads)
torch.manual_seed(1)
model = transformers.AutoModelForCausalLM.from_pretrained(a.folder, dtype=torch.float32)
model.config.use_cache = False
model = peft.get_peft_model(model, peft.LoraConfig(r=8, lora_alpha=16, lora_dropout=0.0, target_modules=["q_proj", "v_proj"]))
if a.checkpointing:
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.enable_input_require_grads()
model.train()
update = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
x = torch.randint(0, 1000, (a.batch, a.tokens + 1))
times, losses = [], []
for _ in range(a.steps + 1):
    start = time.perf_counter()
    update.zero_grad()
    logits = model(input_ids=x[:, :-1]).logits
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.size(-1)), x[:, 1:].reshape(-1))
    loss.backward()
    update.step()
    times.append(time.perf_counter() - start)
    losses.append(loss.item())
best = sorted(times[1:])[len(times[1:]) // 2]
print(json.dumps({"torch": torch.__version__, "transformers": transformers.__version__, "checkpointing": a.checkpointing,
                  "step_s": round(best, 3), "tokens_per_s": round(a.batch * a.tokens / best, 2), "losses": losses,
                  "rss_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}))
