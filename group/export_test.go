package group

import "time"

// Stores of tests are on this machine.
func init() { answerWithin = 5 * time.Second }
