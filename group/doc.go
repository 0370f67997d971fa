// Package group joins processes that train one model together: who is there, who has failed, and
// bytes from one to another.
//
// Every process calls Join with its rank. Tensors move by Send and Receive, small things by Gather.
// A failure is final: once a member has failed or is lost, what waits on any member ends with an
// error that names it, and so does whatever is called later. The job then goes on from its last
// checkpoint in new processes. Package link moves what stages send over a group; package pipe says
// when.
package group
