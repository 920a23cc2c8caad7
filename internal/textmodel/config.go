package textmodel

import (
	"bytes"
	"errors"
	"fmt"
	"math"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// The files of a bundle. All but the first may be missing.
const (
	tokenizerFile        = "tokenizer.json"
	tokenizerConfigFile  = "tokenizer_config.json"
	specialTokensFile    = "special_tokens_map.json"
	configFile           = "config.json"
	generationConfigFile = "generation_config.json"
	templateFile         = "chat_template.jinja"
	templateJSONFile     = "chat_template.json"
)

// readJSON reads a file with the laxness that the files of models need: keys come twice, and numbers are of any kind. An absent file has no fields.
func readJSON(name string, data []byte, into any) error {
	if len(data) == 0 {
		return nil
	}
	err := json.Unmarshal(bytes.TrimPrefix(data, []byte("\ufeff")), into, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	if err != nil {
		return fmt.Errorf("cannot read %s: %w", name, err)
	}
	return nil
}

// modelConfig is what config.json says.
type modelConfig struct {
	context    int // tokens; 0: unknown
	vocabulary int // 0: unknown
	eos        []uint32
}

func readModelConfig(data []byte) (modelConfig, error) {
	type sizes struct {
		MaxPositions  jsontext.Value `json:"max_position_embeddings"`
		Positions     jsontext.Value `json:"n_positions"`
		MaxSequence   jsontext.Value `json:"max_seq_len"`
		SequenceLimit jsontext.Value `json:"seq_length"`
		ModelMax      jsontext.Value `json:"model_max_length"`
		Vocabulary    jsontext.Value `json:"vocab_size"`
		EOS           jsontext.Value `json:"eos_token_id"`
	}
	var file struct {
		sizes
		Text *sizes `json:"text_config"`
	}
	if err := readJSON(configFile, data, &file); err != nil {
		return modelConfig{}, err
	}
	var c modelConfig
	for _, s := range []*sizes{file.Text, &file.sizes} { // of a model with media, the part for text
		if s == nil {
			continue
		}
		for _, v := range []jsontext.Value{s.MaxPositions, s.Positions, s.MaxSequence, s.SequenceLimit, s.ModelMax} {
			if n := count(v); n > 0 && c.context == 0 {
				c.context = n
			}
		}
		if c.vocabulary == 0 {
			c.vocabulary = count(s.Vocabulary)
		}
		if len(c.eos) == 0 {
			c.eos = ids(s.EOS)
		}
	}
	return c, nil
}

// count is a positive number of tokens; 0: the value is none.
func count(v jsontext.Value) int {
	var n float64
	if v.Kind() != '0' || json.Unmarshal(v, &n) != nil || n < 1 || n > math.MaxInt32 {
		return 0
	}
	return int(n)
}

// ids are token ids, of a number or a list of numbers; others are left out.
func ids(v jsontext.Value) []uint32 {
	var list []jsontext.Value
	switch v.Kind() {
	case '0':
		list = []jsontext.Value{v}
	case '[':
		if json.Unmarshal(v, &list) != nil {
			return nil
		}
	}
	var ids []uint32
	for _, item := range list {
		var id uint32
		if item.Kind() == '0' && json.Unmarshal(item, &id) == nil {
			ids = append(ids, id)
		}
	}
	return ids
}

// Sampling is how tokens are chosen where a request does not say it; nil: the API's default.
type Sampling struct {
	Temperature       *float64
	TopP              *float64
	MinP              *float64
	RepetitionPenalty *float64
	TopK              *int64 // 0 and −1: all tokens
	MaxTokens         *int64 // of an answer
}

// ReadSampling reads the default sampling parameters of a model, in the form of a generation_config.json or of what an engine tells of them.
func ReadSampling(data []byte) (Sampling, error) {
	g, err := readGenerationConfig(data)
	return g.sampling, err
}

type generationConfig struct {
	sampling Sampling
	eos      []uint32
}

func readGenerationConfig(data []byte) (generationConfig, error) {
	var file struct {
		Temperature       jsontext.Value `json:"temperature"`
		TopP              jsontext.Value `json:"top_p"`
		TopK              jsontext.Value `json:"top_k"`
		MinP              jsontext.Value `json:"min_p"`
		RepetitionPenalty jsontext.Value `json:"repetition_penalty"`
		MaxNewTokens      jsontext.Value `json:"max_new_tokens"`
		MaxTokens         jsontext.Value `json:"max_tokens"`
		EOS               jsontext.Value `json:"eos_token_id"`
	}
	if err := readJSON(generationConfigFile, data, &file); err != nil {
		return generationConfig{}, err
	}
	float := func(v jsontext.Value) *float64 {
		var f float64
		if v.Kind() != '0' || json.Unmarshal(v, &f) != nil {
			return nil
		}
		return &f
	}
	whole := func(v jsontext.Value) *int64 {
		f := float(v)
		if f == nil || *f != math.Trunc(*f) || math.Abs(*f) > math.MaxInt32 {
			return nil
		}
		n := int64(*f)
		return &n
	}
	s := Sampling{
		Temperature: float(file.Temperature), TopP: float(file.TopP), MinP: float(file.MinP), RepetitionPenalty: float(file.RepetitionPenalty),
		TopK: whole(file.TopK), MaxTokens: whole(file.MaxNewTokens),
	}
	if s.MaxTokens == nil {
		s.MaxTokens = whole(file.MaxTokens)
	}
	return generationConfig{sampling: s, eos: ids(file.EOS)}, nil
}

// tokenizerConfig is what tokenizer_config.json says.
type tokenizerConfig struct {
	special  map[string]string
	template jsontext.Value // a string, or a list of named ones
	// addBOS and addEOS say what is put around a prompt, in place of what tokenizer.json says, if either is there.
	addBOS, addEOS *bool
}

// specialTokens are the names of special tokens that templates know.
var specialTokens = []string{"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}

func readTokenizerConfig(data []byte) (*tokenizerConfig, error) {
	c := &tokenizerConfig{special: map[string]string{}}
	var file map[string]jsontext.Value
	if err := readJSON(tokenizerConfigFile, data, &file); err != nil {
		return nil, err
	}
	c.template = file["chat_template"]
	c.addBOS, c.addEOS = flag(file["add_bos_token"]), flag(file["add_eos_token"])
	c.addNamed(file)
	return c, nil
}

func flag(v jsontext.Value) *bool {
	if k := v.Kind(); k != 't' && k != 'f' {
		return nil
	}
	set := v.Kind() == 't'
	return &set
}

func (c *tokenizerConfig) addNamed(file map[string]jsontext.Value) {
	for _, name := range specialTokens {
		if text, ok := tokenText(file[name]); ok && c.special[name] == "" {
			c.special[name] = text
		}
	}
}

// addSpecialTokens reads special_tokens_map.json, for what the configuration leaves out.
func (c *tokenizerConfig) addSpecialTokens(data []byte) error {
	var file map[string]jsontext.Value
	if err := readJSON(specialTokensFile, data, &file); err != nil {
		return err
	}
	c.addNamed(file)
	return nil
}

// tokenText is the text of a special token, which is a string or an object with its content.
func tokenText(v jsontext.Value) (text string, ok bool) {
	switch v.Kind() {
	case '"':
		return text, json.Unmarshal(v, &text) == nil
	case '{':
		var token struct {
			Content *string `json:"content"`
		}
		if json.Unmarshal(v, &token) == nil && token.Content != nil {
			return *token.Content, true
		}
	}
	return "", false
}

// chatTemplate is the source of the template; empty: there is none.
func chatTemplate(c *tokenizerConfig, files map[string][]byte) (string, error) {
	if data := files[templateFile]; len(data) > 0 {
		return string(data), nil
	}
	v := c.template
	if data := files[templateJSONFile]; len(data) > 0 {
		var file struct {
			Template jsontext.Value `json:"chat_template"`
		}
		if err := readJSON(templateJSONFile, data, &file); err != nil {
			return "", err
		}
		v = file.Template
	}
	switch v.Kind() {
	case '"':
		var source string
		err := json.Unmarshal(v, &source, jsontext.AllowInvalidUTF8(true))
		return source, err
	case '[':
		var named []struct {
			Name     string `json:"name"`
			Template string `json:"template"`
		}
		if err := json.Unmarshal(v, &named); err != nil {
			return "", err
		}
		for _, t := range named {
			if t.Name == "default" {
				return t.Template, nil
			}
		}
		return "", errors.New("there are several templates, and none is called default")
	}
	return "", nil
}
