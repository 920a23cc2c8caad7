package dispatch

import (
	"bytes"
	"sync"

	"github.com/sluice-router/sluice/internal/kv"
	"github.com/sluice-router/sluice/internal/openai"
)

// promptKeys are the keys by which the index of KV caches knows a request's prompt, and what
// the request does with them: which ranks hold the prompt's beginning (cache_holders.go), and
// what the ranks that it is sent to hold then (cache_record.go). They are made once and serve
// all attempts and both legs.
//
// A nil *promptKeys is that of a request whose prompt is not looked up; its methods do
// nothing.
type promptKeys struct {
	c *caches

	// immutable once made
	sent   keyChain   // what ranks are recorded to hold by being sent the prompt
	exact  []keyChain // what engines' events tell, one for each scope; of token ids
	all    int64      // tokens of the request's prompts, over all copies
	tokens int64      // of them, those of the prompt that the keys are of
	// growing: the answer goes on where the prompt ends, so that the next turn of the
	// conversation begins with both.
	growing bool
	framed  bool // the answer is a message
	// asIDs: engines get the prompt as the ids that exact is of. Those that tell of their
	// blocks are known by these alone then; else they may have made other ids of the text.
	asIDs bool

	search cacheSearch
	answer openai.AnswerText
	// answerEvent is answer.Event.
	answerEvent func(data []byte)
	records     [2]cacheRecord // by leg
}

// keyChain are the keys of a prompt in blocks of one size.
type keyChain struct {
	hasher kv.Hasher
	// size is the length of a block, length that of the prompt: of bytes, or of token ids.
	size, length int64
}

const (
	// tokenBlock is the length in tokens of a block of token ids where no engine's own is
	// asked for: about that of a block of text.
	tokenBlock = 64
	// maxKeys bounds the keys of a prompt: what lies beyond so many blocks is not looked up.
	maxKeys = 8192
	// maxExactScopes bounds how many times token ids are hashed for what engines tell: for
	// each size of their blocks, and each name that they know the model by.
	maxExactScopes = 4
	// mediaBytes is what an image or the like counts for in the bytes of a prompt.
	mediaBytes = 2048
)

// The forms of prompts: what their bytes mean. Texts of completions and of SGLang's own API
// are the same.
const (
	formChat      = 'c'
	formMessages  = 'm'
	formResponses = 'r'
	formText      = 'x'
)

var formOf = map[openai.Route]byte{
	openai.RouteChatCompletions: formChat, openai.RouteMessages: formMessages, openai.RouteResponses: formResponses,
	openai.RouteCompletions: formText, openai.RouteGenerate: formText,
}

var promptKeysPool = sync.Pool{New: func() any {
	k := new(promptKeys)
	// Once: they would be allocated at each use.
	k.search.mayUse, k.answerEvent = k.search.eligible, k.answer.Event
	return k
}}

// hashPrompt makes the keys of a request's prompt; nil if it has none. estimate is the
// length of the prompt in tokens; text has the ids of one that is text.
func (c *caches) hashPrompt(p *openai.Peeked, model, adapter string, estimate int64, text countedPrompt) *promptKeys {
	form := formOf[p.Route]
	if form == 0 || continuesStored(p) {
		return nil
	}
	k := promptKeysPool.Get().(*promptKeys)
	k.c = c
	k.all, k.tokens = estimate, estimate/int64(max(p.BatchSize, 1))
	scope := scopeOf(p, model, adapter, form)
	if p.PromptKind.TokenIDs() {
		k.hashTokens(p, scope)
		k.asIDs = true
	} else {
		k.hashText(p, scope)
		k.hashCounted(text.ids, scope)
		k.asIDs = text.sent
	}
	if len(k.sent.keys()) == 0 && len(k.exact) == 0 && !k.growing {
		k.release()
		return nil
	}
	return k
}

// continuesStored tells whether an engine remembers the beginning of the conversation.
func continuesStored(p *openai.Peeked) bool {
	return p.Route == openai.RouteResponses && (p.Given(openai.FieldPreviousResponseID) || p.Given(openai.FieldConversation))
}

// scopeOf is what the keys of a request are apart by. What SGLang calls extra_key keeps blocks
// apart as the cache salt does, in a way of its own; no adapter has a name with a zero byte.
func scopeOf(p *openai.Peeked, model, adapter string, form byte) kv.Scope {
	s := kv.Scope{Model: model, Adapter: adapter, Salt: saltIn(p, openai.FieldCacheSalt), Form: form, Size: kv.BlockBytes}
	if extra := saltIn(p, openai.FieldExtraKey); extra != "" {
		s.Adapter += "\x00" + extra
	}
	return s
}

func saltIn(p *openai.Peeked, f openai.Field) string {
	switch p.FieldKind(f) {
	case openai.KindAbsent, openai.KindNull:
		return ""
	case openai.KindString:
		v, _ := p.Str(f)
		return v
	}
	return string(p.Raw(f))
}

// keyWalk is the memory of one walk over a prompt.
type keyWalk struct {
	walk openai.PromptWalk
	to   *keyChain
	// assistant: the last message is the model's own, which the answer goes on with.
	assistant bool
}

var keyWalks = sync.Pool{New: func() any { return new(keyWalk) }}

// hashText makes the keys of a text.
func (k *promptKeys) hashText(p *openai.Peeked, s kv.Scope) {
	k.sent.begin(s)
	w := keyWalks.Get().(*keyWalk)
	w.to, w.assistant = &k.sent, false
	w.walk.Walk(p, w)
	if k.sent.full() { // the rest was not walked
		k.sent.length = max(k.sent.length, int64(p.PromptBytes+p.ToolBytes))
	}
	k.framed = s.Form != formText
	k.growing = p.Samples() == 1 && !w.assistant && !asksFor(p, openai.FieldEcho) && !k.sent.full()
	w.to = nil
	keyWalks.Put(w)
}

// TakePiece is that of openai.PieceTaker.
func (w *keyWalk) TakePiece(kind openai.PieceKind, b []byte) bool {
	switch kind {
	case openai.PieceFrame:
		w.assistant = string(b) == assistantRole
		w.to.frame(b)
	case openai.PieceMedia:
		w.to.length += mediaBytes
		w.to.hasher.WriteItem(b, mediaBytes)
	case openai.PieceJSON:
		w.to.write(jsonMark)
		w.to.write(b)
	default:
		w.to.write(b)
	}
	return !w.to.full()
}

const assistantRole = "assistant"

// What stands between the pieces of a prompt where it is hashed: bytes that texts do not have.
var frameMark, textMark, jsonMark = []byte{0}, []byte{1}, []byte{2}

func (c *keyChain) begin(s kv.Scope) {
	c.size, c.length = int64(s.Size), 0
	c.hasher.Limit = maxKeys
	c.hasher.Reset(s)
}

func (c *keyChain) keys() []kv.Key { return c.hasher.Keys() }

func (c *keyChain) full() bool { return len(c.keys()) >= maxKeys }

func (c *keyChain) write(b []byte) {
	c.length += int64(len(b))
	c.hasher.Write(b)
}

// frame begins a message.
func (c *keyChain) frame(role []byte) {
	c.write(frameMark)
	c.write(role)
	c.write(textMark)
}

// hashTokens makes the keys of token ids: for what ranks are sent, and for each scope of what
// engines tell.
func (k *promptKeys) hashTokens(p *openai.Peeked, s kv.Scope) {
	s.Form, s.Size = kv.FormTokens, tokenBlock
	k.sent.begin(s)
	length := int64(p.PromptTokenIDs / max(p.BatchSize, 1))
	k.sent.length = length
	k.beginExact(s, length)
	openai.WalkTokens(p, func(ids []uint32) bool {
		k.sent.hasher.WriteTokens(ids)
		return k.writeExact(ids) || !k.sent.full()
	})
}

// hashCounted makes the keys of what engines tell for a prompt that is text, whose ids are
// known here. What ranks are sent stays known by the text, with which the answer goes on.
func (k *promptKeys) hashCounted(ids []uint32, s kv.Scope) {
	if len(ids) == 0 {
		return
	}
	s.Form = kv.FormTokens
	k.beginExact(s, int64(len(ids)))
	for len(ids) > 0 && len(k.exact) > 0 {
		n := min(len(ids), idsAtOnce)
		if !k.writeExact(ids[:n]) {
			return
		}
		ids = ids[n:]
	}
}

// idsAtOnce is after how many ids it is looked whether the chains are full.
const idsAtOnce = 4096

// beginExact begins a chain for each scope of what engines tell of token ids.
func (k *promptKeys) beginExact(s kv.Scope, length int64) {
	for _, e := range k.c.exactScopes(s.Model) {
		if len(k.exact) < cap(k.exact) {
			k.exact = k.exact[:len(k.exact)+1]
		} else {
			k.exact = append(k.exact, keyChain{})
		}
		s.Model, s.Size = e.Model, e.Block
		c := &k.exact[len(k.exact)-1]
		c.begin(s)
		c.length = length
	}
}

// writeExact goes on with ids, and tells whether any chain takes more.
func (k *promptKeys) writeExact(ids []uint32) (more bool) {
	for i := range k.exact {
		k.exact[i].hasher.WriteTokens(ids)
		more = more || !k.exact[i].full()
	}
	return more
}

// asksFor tells whether a field is there and neither null, false nor zero.
func asksFor(p *openai.Peeked, f openai.Field) bool {
	raw := p.Raw(f)
	return p.Given(f) && !bytes.Equal(raw, []byte("false")) && !bytes.Equal(raw, []byte("0"))
}

// bytes is the memory of the keys.
func (k *promptKeys) bytes() int {
	n := len(k.sent.keys())
	for i := range k.exact {
		n += len(k.exact[i].keys())
	}
	return 8 * n
}

// LoggedEvery is how many blocks of a prompt there are to one key in Record.PromptKeys: those
// of a text have 2,048 bytes then, those of token ids 512 tokens, which is about as much.
const LoggedEvery = 8

// logged returns a copy of the keys that the log tells; nil for a prompt that is too short.
func (k *promptKeys) logged() []kv.Key {
	keys := k.sent.keys()
	if len(keys) < LoggedEvery {
		return nil
	}
	some := make([]kv.Key, 0, len(keys)/LoggedEvery)
	for i := LoggedEvery - 1; i < len(keys); i += LoggedEvery {
		some = append(some, keys[i])
	}
	return some
}

// maxKeptKeys is how many keys a chain may have whose memory stays in the pool.
const maxKeptKeys = 1024

// release gives the keys back. Nobody may use them any more.
func (k *promptKeys) release() {
	if k == nil {
		return
	}
	if len(k.sent.keys()) > maxKeptKeys {
		k.sent.hasher = kv.Hasher{}
	}
	for i := range k.exact {
		if len(k.exact[i].keys()) > maxKeptKeys {
			k.exact[i].hasher = kv.Hasher{}
		}
	}
	k.c, k.exact, k.growing, k.asIDs = nil, k.exact[:0], false, false
	k.search.target, k.search.sharing, k.search.counted = nil, 0, false
	k.records = [2]cacheRecord{}
	promptKeysPool.Put(k)
}
