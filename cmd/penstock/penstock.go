// Command penstock trains neural networks as pipelines of micro-batches.
package main

import "penstock.example/command"

func main() { command.Main() }
