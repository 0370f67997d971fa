package link

// Work is a send or a receive of a tensor's memory that is under way. It is safe for concurrent
// use. The tensor must stay as it is until Wait has returned.
type Work interface {
	// Wait blocks until the transfer has ended or the group has failed. Its error is then the
	// group's. It may be called again and returns the same.
	Wait() error
}
