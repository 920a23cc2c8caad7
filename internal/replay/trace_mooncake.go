package replay

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/sluice-router/sluice/internal/kv"
)

// Blocks of the traces published with Mooncake (arXiv 2407.00079, FAST25-release): hash_ids
// are of 512 tokens, timestamps are milliseconds and, but for the synthetic trace, multiples
// of 3 s.
const (
	mooncakeBlock = 512
	mooncakeGrain = 3 * time.Second
)

// mooncakeLine is one request in Mooncake's format.
type mooncakeLine struct {
	Timestamp    *float64 `json:"timestamp"`
	InputLength  *int64   `json:"input_length"`
	OutputLength *int64   `json:"output_length"`
	HashIDs      []uint64 `json:"hash_ids"`
}

// mooncake reads lines of Mooncake's format.
type mooncake struct{ trace *Trace }

func (m *mooncake) read(line []byte) error {
	var l mooncakeLine
	if err := json.Unmarshal(line, &l); err != nil {
		return jsonError(err)
	}
	switch {
	case l.Timestamp == nil:
		return errors.New("there is no timestamp")
	case l.InputLength == nil:
		return errors.New("there is no input_length")
	case *l.Timestamp < 0 || *l.Timestamp > float64(maxTime.Milliseconds()):
		return fmt.Errorf("the timestamp %v is not a number of milliseconds within %v", *l.Timestamp, maxTime)
	case *l.InputLength < 0 || *l.InputLength > maxTokens:
		return fmt.Errorf("the input_length %d is not between 0 and %d", *l.InputLength, maxTokens)
	}
	if most := (*l.InputLength + mooncakeBlock - 1) / mooncakeBlock; int64(len(l.HashIDs)) > most {
		return fmt.Errorf("%d hash_ids are more than %d tokens have in blocks of %d", len(l.HashIDs), *l.InputLength, mooncakeBlock)
	}
	r := Request{
		At:     time.Duration(math.Round(*l.Timestamp * float64(time.Millisecond))),
		Prompt: *l.InputLength, BlockTokens: mooncakeBlock, Blocks: make([]kv.Key, len(l.HashIDs)),
	}
	if l.OutputLength != nil {
		r.Output = *l.OutputLength
	}
	for i, id := range l.HashIDs {
		r.Blocks[i] = kv.Key(mix(id))
	}
	return m.trace.add(r)
}

func (m *mooncake) end() error {
	m.trace.BlockTokens, m.trace.Grain = mooncakeBlock, mooncakeGrain
	return nil
}

// mix makes small numbers keys that look like hashes (the finalizer of splitmix64). It maps
// no two to one.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// jsonError leaves of an error what says what is wrong with a line of JSON.
func jsonError(err error) error {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		return fmt.Errorf("at byte %d: %v", syntax.Offset, syntax)
	case errors.As(err, &kind):
		return fmt.Errorf("%s cannot be a %s", kind.Field, kind.Value)
	}
	return err
}
