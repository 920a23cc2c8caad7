package cluster

import "errors"

// Why what an operator asked for is not done, to be told with errors.Is.
var (
	// ErrNoMember: no member of that name is known.
	ErrNoMember = errors.New("there is no such member")
	// ErrAnswers: the member answers, so that it has not ended.
	ErrAnswers = errors.New("the member answers, so that it has not ended")
	// ErrNotKeeper: only the keeper can do this.
	ErrNotKeeper = errors.New("this member is not the keeper")
	// ErrNoSuccessor: no other member could take over.
	ErrNoSuccessor = errors.New("there is no other member that could take over")
)
