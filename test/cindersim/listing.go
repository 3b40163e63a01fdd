package cindersim

import (
	"cmp"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim/collation"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim/fields"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim/python"
)

// memberFilter reports whether Cinder's resource_filters.json allows a filter
// to a project member. An administrator, and so every user in noauth mode, may
// use any.
func memberFilter(name string) bool {
	switch name {
	case "name", "status", "metadata", "bootable", "migration_status", "availability_zone",
		"group_id", "size", "created_at", "updated_at", "consumes_quota":
		return true
	}
	return false
}

// filter is one condition of a list.
type filter func(*volume) bool

// listQuery is a parsed list request.
type listQuery struct {
	marker    string
	limit     int
	offset    int
	keys      []string
	ascending []bool
	withCount bool
	filters   []filter
	// nothing means that a filter was invalid, to which Cinder answers with an
	// empty list.
	nothing bool
}

func (c *cloud) listVolumes(q *call, detail bool) (*reply, error) {
	list, err := c.parseList(q)
	if err != nil {
		return nil, err
	}
	page, count, err := c.page(q, list)
	if err != nil {
		return nil, err
	}
	collection := "volumes"
	size := 256
	if detail {
		collection, size = "volumes/detail", 1536
	}
	out := append(make([]byte, 0, len(page)*size+256), `{"volumes":[`...)
	as := q.view()
	for i, v := range page {
		if i > 0 {
			out = append(out, ',')
		}
		if detail {
			out = c.appendVolume(out, q, v, as)
		} else {
			out = appendSummary(out, q, v)
		}
	}
	out = append(out, ']')
	// Cinder offers a next page whenever this one is full, or, when it counted,
	// whenever the whole list is longer than a page.
	total := len(page)
	if list.withCount && count > 0 {
		total = count
	}
	if len(page) > 0 && list.limit <= total {
		out = append(out, `,"volumes_links":`...)
		out = append(out, encode([]map[string]string{{
			"rel": "next", "href": q.href(collection) + "?" + nextQuery(q.rawQuery, page[len(page)-1].id),
		}})...)
	}
	if list.withCount {
		out = append(append(out, `,"count":`...), strconv.Itoa(count)...)
	}
	return &reply{status: http.StatusOK, body: append(out, '}')}, nil
}

// nextQuery repeats the request's parameters in their order, with the new marker
// at the end.
func nextQuery(raw, marker string) string {
	var parts []string
	for _, part := range strings.Split(raw, "&") {
		name, value, _ := strings.Cut(part, "=")
		plainName, errName := url.QueryUnescape(name)
		plainValue, errValue := url.QueryUnescape(value)
		if part == "" || plainName == "marker" || errName != nil || errValue != nil {
			continue
		}
		parts = append(parts, url.QueryEscape(plainName)+"="+url.QueryEscape(plainValue))
	}
	return strings.Join(append(parts, "marker="+url.QueryEscape(marker)), "&")
}

func (c *cloud) parseList(q *call) (*listQuery, error) {
	list := &listQuery{}
	var err error
	if list.limit, list.offset, err = c.pageLimits(q); err != nil {
		return nil, err
	}
	list.marker, _ = q.param("marker")
	if list.keys, list.ascending, err = sortOrder(q); err != nil {
		return nil, err
	}
	if _, given := q.param("with_count"); given && q.minor >= 45 {
		if list.withCount, err = q.flag("with_count"); err != nil {
			return nil, err
		}
	}
	allTenants := false
	var rejected []string
	for name := range q.query {
		value, _ := q.param(name)
		switch name {
		case "limit", "offset", "marker", "sort", "sort_key", "sort_dir":
			continue
		case "with_count":
			if q.minor >= 45 {
				continue
			}
		case "all_tenants":
			if !q.admin {
				continue // silently ignored
			}
			if allTenants, err = q.flag("all_tenants"); err != nil {
				return nil, err
			}
			if allTenants {
				continue
			}
			// Cinder treats a false all_tenants as an unknown filter.
		}
		if !q.admin && !memberFilter(name) {
			// Up to 3.30 a member's unknown filters are dropped: everything
			// matches. From 3.31 on they are an error.
			if q.minor >= 31 {
				rejected = append(rejected, name)
			}
			continue
		}
		if err := list.add(name, value, q.minor); err != nil {
			return nil, err
		}
	}
	if len(rejected) > 0 {
		slices.Sort(rejected)
		return nil, refuse(http.StatusBadRequest, "Invalid filters %s are found in query options.", strings.Join(rejected, ","))
	}
	if !q.admin {
		list.filters = append(list.filters, func(v *volume) bool { return !strings.HasPrefix(v.migration, migrationTargetOf) })
	}
	if !q.admin || !allTenants {
		project := q.project
		list.filters = append(list.filters, func(v *volume) bool { return v.project == project })
	}
	return list, nil
}

// pageLimits reads limit and offset.
func (c *cloud) pageLimits(q *call) (limit, offset int, err error) {
	limit = c.options.MaxLimit
	if text, given := q.param("limit"); given {
		if limit, err = strconv.Atoi(strings.TrimSpace(text)); err != nil {
			return 0, 0, refuse(http.StatusBadRequest, "limit param must be an integer")
		}
		if limit < 0 {
			return 0, 0, refuse(http.StatusBadRequest, "limit param must be positive")
		}
		limit = min(limit, c.options.MaxLimit)
	}
	if text, given := q.param("offset"); given {
		if offset, err = strconv.Atoi(strings.TrimSpace(text)); err != nil {
			return 0, 0, refuse(http.StatusBadRequest, "offset must be an integer")
		}
		if offset < 0 {
			return 0, 0, refuse(http.StatusBadRequest, "offset must be >= 0")
		}
	}
	return limit, offset, nil
}

// sortOrder reads sort, or sort_key and sort_dir, and appends the default keys
// in the direction of the first.
func sortOrder(q *call) (keys []string, ascending []bool, err error) {
	var directions []string
	_, hasKey := q.param("sort_key")
	_, hasDirection := q.param("sort_dir")
	if text, given := q.param("sort"); given {
		if hasKey || hasDirection {
			return nil, nil, refuse(http.StatusBadRequest, "The 'sort_key' and 'sort_dir' parameters are deprecated and cannot be used "+
				"with the 'sort' parameter.")
		}
		for _, part := range strings.Split(strings.TrimSpace(text), ",") {
			key, direction, _ := strings.Cut(part, ":")
			direction = cmp.Or(direction, "desc")
			keys, directions = append(keys, strings.TrimSpace(key)), append(directions, strings.TrimSpace(direction))
		}
	} else {
		key, direction := "created_at", "desc"
		if text, given := q.param("sort_key"); given {
			key = strings.TrimSpace(text)
		}
		if text, given := q.param("sort_dir"); given {
			direction = strings.TrimSpace(text)
		}
		keys, directions = []string{key}, []string{direction}
	}
	for i, direction := range directions {
		if direction != "asc" && direction != "desc" {
			return nil, nil, refuse(http.StatusBadRequest, "Invalid input received: Unknown sort direction, must be 'desc' or 'asc'.")
		}
		ascending = append(ascending, direction == "asc")
		if keys[i] == "name" {
			keys[i] = "display_name"
		}
		if comparator(keys[i]) == nil {
			return nil, nil, refuse(http.StatusBadRequest, "Invalid input received: Invalid sort key")
		}
	}
	for _, key := range []string{"created_at", "id"} {
		if !slices.Contains(keys, key) {
			keys, ascending = append(keys, key), append(ascending, ascending[0])
		}
	}
	return keys, ascending, nil
}

func comparator(key string) func(a, b *volume) int {
	switch key {
	case "display_name":
		return func(a, b *volume) int { return strings.Compare(a.nameKey, b.nameKey) }
	case "created_at":
		return func(a, b *volume) int { return cmp.Compare(a.created.Unix(), b.created.Unix()) }
	case "updated_at":
		return func(a, b *volume) int { return cmp.Compare(a.updated.Unix(), b.updated.Unix()) }
	case "id":
		return func(a, b *volume) int { return strings.Compare(a.id, b.id) }
	case "status":
		return func(a, b *volume) int { return strings.Compare(a.status, b.status) }
	case "size":
		return func(a, b *volume) int { return cmp.Compare(a.size, b.size) }
	case "availability_zone":
		return func(a, b *volume) int { return strings.Compare(collation.Key(a.zone), collation.Key(b.zone)) }
	}
	return nil
}

// compare orders two volumes as the request requires.
func (list *listQuery) compare(a, b *volume) int {
	for i, key := range list.keys {
		if order := comparator(key)(a, b); order != 0 {
			if list.ascending[i] {
				return order
			}
			return -order
		}
	}
	return 0
}

// page selects the volumes of one page, and counts all that match if requested.
func (c *cloud) page(q *call, list *listQuery) (page []*volume, count int, err error) {
	var marker *volume
	if list.marker != "" {
		if marker, err = c.find(q, list.marker); err != nil {
			return nil, 0, err
		}
	}
	if list.nothing {
		return nil, 0, nil
	}
	natural := slices.Equal(list.keys, []string{"created_at", "id"}) && !list.ascending[0] && !list.ascending[1]
	skip := list.offset
	var matched []*volume
	// The stored order is the default order in reverse.
	for i := len(c.order) - 1; i >= 0; i-- {
		v := c.order[i]
		if !list.matches(v) {
			continue
		}
		count++
		if natural {
			if len(page) == list.limit {
				if list.withCount {
					continue
				}
				return page, count, nil
			}
			if marker != nil && list.compare(v, marker) <= 0 {
				continue
			}
			if skip > 0 {
				skip--
				continue
			}
			page = append(page, v)
		} else if marker == nil || list.compare(v, marker) > 0 {
			matched = append(matched, v)
		}
	}
	if !natural {
		slices.SortFunc(matched, list.compare)
		matched = matched[min(skip, len(matched)):]
		page = matched[:min(list.limit, len(matched))]
	}
	return page, count, nil
}

func (list *listQuery) matches(v *volume) bool {
	for _, holds := range list.filters {
		if !holds(v) {
			return false
		}
	}
	return true
}

// add turns a query parameter into a condition like Cinder: names are used
// unchanged, everything else is first read as a Python literal.
func (list *listQuery) add(name, value string, minor int) error {
	column, similar := strings.CutSuffix(name, "~")
	if column == "name" {
		if similar && minor < 31 {
			return nil // "name~" is then a property, which a filter passes over
		}
		column = "display_name"
	}
	if similar {
		text := columnText(column)
		if text == nil {
			list.nothing = true
			return nil
		}
		pattern := "%" + collation.Key(value) + "%"
		list.filters = append(list.filters, func(v *volume) bool { return collation.Like(pattern, collation.Key(text(v))) })
		return nil
	}
	var parsed any = value
	if column != "display_name" {
		if read, err := python.Literal(value); err == nil {
			parsed = read
		}
	}
	if column == "metadata" {
		list.addMetadata(parsed)
		return nil
	}
	text := columnText(column)
	if text == nil {
		list.nothing = true
		return nil
	}
	if _, known := fields.Truth(value); column == "bootable" && minor >= 2 && !known {
		return refuse(http.StatusBadRequest, "Invalid input received: 'bootable = %s'", value)
	}
	wanted := []any{parsed}
	if several, ok := parsed.([]any); ok {
		wanted = several
	}
	keys := make([]string, 0, len(wanted))
	for _, want := range wanted {
		keys = append(keys, collation.Key(columnValue(column, want)))
	}
	if column == "display_name" {
		list.filters = append(list.filters, func(v *volume) bool {
			return v.name != nil && slices.Contains(keys, v.nameKey)
		})
		return nil
	}
	list.filters = append(list.filters, func(v *volume) bool { return slices.Contains(keys, collation.Key(text(v))) })
	return nil
}

// columnValue returns a wanted value in the form of columnText.
func columnValue(column string, value any) string {
	switch column {
	case "bootable", "multiattach":
		// Anything but a spelling of False is true.
		if text := strings.ToLower(python.Text(value)); text == "false" || text == "" {
			return "False"
		}
		return "True"
	}
	if number, ok := value.(json.Number); ok {
		return number.String()
	}
	return python.Text(value)
}

// columnText returns the accessor of a column that lists can be filtered by;
// nil means that Cinder has no such column.
func columnText(column string) func(*volume) string {
	switch column {
	case "display_name":
		return func(v *volume) string { return stringOf(v.name) }
	case "display_description":
		return func(v *volume) string { return stringOf(v.description) }
	case "id":
		return func(v *volume) string { return v.id }
	case "status":
		return func(v *volume) string { return v.status }
	case "attach_status":
		return func(v *volume) string { return v.attachStatus }
	case "size":
		return func(v *volume) string { return strconv.Itoa(v.size) }
	case "availability_zone":
		return func(v *volume) string { return v.zone }
	case "project_id":
		return func(v *volume) string { return v.project }
	case "user_id":
		return func(v *volume) string { return v.user }
	case "host":
		return func(v *volume) string { return v.host }
	case "volume_type_id":
		return func(v *volume) string { return v.kind.ID }
	case "snapshot_id":
		return func(v *volume) string { return v.snapshotID }
	case "source_volid":
		return func(v *volume) string { return v.sourceID }
	case "bootable":
		return func(*volume) string { return "False" }
	case "multiattach":
		return func(v *volume) string {
			if v.kind.Multiattach {
				return "True"
			}
			return "False"
		}
	case "migration_status", "group_id":
		return func(*volume) string { return "" }
	}
	return nil
}

func stringOf(text *string) string {
	if text == nil {
		return ""
	}
	return *text
}

// addMetadata requires all of the given entries, comparing like the database. A
// value that is not a dictionary matches nothing.
func (list *listQuery) addMetadata(value any) {
	entries, ok := value.(map[string]any)
	if !ok {
		list.nothing = true
		return
	}
	for key, want := range entries {
		wanted := collation.Key(key) + "\x00" + collation.Key(python.Text(want))
		list.filters = append(list.filters, func(v *volume) bool {
			_, has := v.metadataKeys[wanted]
			return has
		})
	}
}

// collection is one of the lists other than that of volumes.
type collection struct {
	// name is its key in the answer, and links that of the link to the next page. noun is
	// what a marker is missing as. Without links, markers mean nothing.
	name, links, noun string
}

// listed is an object of a collection.
type listed struct {
	id      string
	created time.Time
	view    func() map[string]any
}

// shows reports whether a list has an object of a project whose values fit the filters.
func (q *call) shows(project string, allTenants bool, values map[string]string) bool {
	for filter, actual := range values {
		if wanted, given := q.param(filter); given && collation.Key(wanted) != collation.Key(actual) {
			return false
		}
	}
	return project == q.project || q.admin && allTenants
}

// paged answers with a page: the newest first, and those of the same second by ID.
func (c *cloud) paged(q *call, of collection, detail bool, found []listed) (*reply, error) {
	limit, offset, err := c.pageLimits(q)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(found, func(a, b listed) int {
		return cmp.Or(cmp.Compare(b.created.Unix(), a.created.Unix()), strings.Compare(b.id, a.id))
	})
	if marker, given := q.param("marker"); given && of.links != "" {
		at := slices.IndexFunc(found, func(one listed) bool { return one.id == marker })
		if at < 0 {
			return nil, refuse(http.StatusNotFound, "%s %s could not be found.", of.noun, marker)
		}
		found = found[at+1:]
	}
	found = found[min(offset, len(found)):]
	views := []map[string]any{}
	for _, one := range found[:min(limit, len(found))] {
		views = append(views, one.view())
	}
	answer := map[string]any{of.name: views}
	if len(views) > 0 && limit <= len(views) && of.links != "" {
		path := of.name
		if detail {
			path += "/detail"
		}
		answer[of.links] = []map[string]string{{"rel": "next", "href": q.href(path) + "?" + nextQuery(q.rawQuery, found[len(views)-1].id)}}
	}
	return success(http.StatusOK, answer), nil
}
