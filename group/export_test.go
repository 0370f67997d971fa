package group

import "time"

// What tests leave behind has gone at once.
func init() { bindTime = time.Second }
