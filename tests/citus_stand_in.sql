-- What `threadkeep setup --citus` uses of Citus, on one server without Citus. The functions check what Citus checks of
-- their arguments, and record it in the tables of Citus. They move no rows.
create table pg_dist_local_group (groupid integer);
insert into pg_dist_local_group values (0);
create table pg_dist_partition (
    logicalrelid regclass primary key, partmethod "char", partkey text, colocationid oid, repmodel "char"
);

create function refuse_worker() returns void language plpgsql as $$
begin
    if (select groupid from pg_dist_local_group) <> 0 then
        raise 'operation is not allowed on this node' using hint = 'Connect to the coordinator and run it again.';
    end if;
end $$;

create function create_distributed_table(
    table_name regclass, distribution_column text, distribution_type text default 'hash',
    colocate_with text default 'default', shard_count integer default null
) returns void language plpgsql as $$
declare
    number smallint := (select attnum from pg_attribute where attrelid = table_name and attname = distribution_column);
begin
    perform refuse_worker();
    if exists (select from pg_index where indrelid = table_name and indisunique and number <> all (indkey)) then
        raise 'cannot create constraint on %', table_name using errcode = '0A000';
    end if;
    if exists (select from pg_constraint where contype = 'f' and table_name in (conrelid, confrelid)) then
        raise 'cannot create foreign key constraint' using errcode = '0A000';
    end if;
    if colocate_with not in ('default', 'none') and (
        select atttypid from pg_attribute a join pg_dist_partition p on a.attrelid = p.logicalrelid
        where p.logicalrelid = to_regclass(colocate_with) and attname = p.partkey
    ) is distinct from (select atttypid from pg_attribute where attrelid = table_name and attnum = number) then
        raise 'cannot colocate tables % and %', colocate_with, table_name using errcode = '22023';
    end if;
    insert into pg_dist_partition values (
        table_name, 'h', distribution_column,
        case when colocate_with in ('none', 'default') then table_name::oid else to_regclass(colocate_with)::oid end, 's'
    );
end $$;

create function create_reference_table(table_name regclass) returns void language plpgsql as $$
begin
    perform refuse_worker();
    insert into pg_dist_partition values (table_name, 'n', null, 0, 't');
end $$;

create function column_to_column_name(table_name regclass, column_var_text text) returns text language sql
as 'select column_var_text';

create function citus_total_relation_size(logicalrelid regclass, fail_on_error boolean default true) returns bigint
language sql as 'select 1000000007';
